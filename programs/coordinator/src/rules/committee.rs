//! Who witnesses and who verifies in a round.

use super::{bitmap, seeds, shuffle::Order};
use crate::{constants::MAX_VERDICTS, state::Round};
use alloc::vec::Vec;

pub const WITNESS: &[u8] = b"witness";
pub const COMMITTEE: &[u8] = b"committee";
pub const DATA: &[u8] = b"data";
pub const COOLDOWN: &[u8] = b"cooldown";

/// The order of a round's ranks for one purpose.
pub fn order(round: &Round, purpose: &[u8]) -> Order {
    Order::new(seeds::of_purpose(round.seed, purpose), round.clients as usize)
}

/// Witnesses elected among `clients` members when the config asks for `nodes` (0 = all), at most 32.
pub fn elected(nodes: u16, clients: u16) -> u8 {
    let wanted = if nodes == 0 { clients } else { nodes.min(clients) };
    wanted.min(crate::constants::MAX_WITNESSES as u16) as u8
}

/// Whether the member of `slot` is of the round and elected as a witness.
#[inline(never)]
pub fn is_witness(round: &Round, slot: u8) -> bool {
    if !bitmap::has(&round.roster, slot) {
        return false;
    }
    if u16::from(round.elected) >= round.clients {
        return true;
    }
    let rank = bitmap::rank(&round.roster, slot) as u8;
    order(round, WITNESS).ranks().iter().take(round.elected as usize).any(|elected| *elected == rank)
}

/// How many of `clients` members verify: the percentage rounded down, no more than verdicts that can be stored about one
/// of them, and somebody always trains.
pub fn verifiers(clients: u16, percent: u8) -> u32 {
    let clients = u32::from(clients);
    (clients * u32::from(percent) / 100).min(clients.saturating_sub(1)).min(MAX_VERDICTS as u32)
}

/// Position of every rank in the order of one purpose.
#[inline(never)]
pub fn positions(round: &Round, purpose: &[u8]) -> Vec<u8> {
    let order = order(round, purpose);
    let mut positions = alloc::vec![0; order.ranks().len()];
    for (position, rank) in order.ranks().iter().enumerate() {
        positions[*rank as usize] = position as u8;
    }
    positions
}
