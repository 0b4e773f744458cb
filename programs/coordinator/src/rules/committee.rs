//! Who witnesses and who verifies in a round.

use super::{bitmap, members, seeds, shuffle::Order};
use crate::{
    constants::{Bitmap, MAX_VERDICTS},
    state::{run_state, Members, Round, Run},
};
use alloc::vec::Vec;

pub const WITNESS: &[u8] = b"witness";
pub const COMMITTEE: &[u8] = b"committee";
pub const DATA: &[u8] = b"data";
pub const COOLDOWN: &[u8] = b"cooldown";
pub const CHECKPOINT: &[u8] = b"checkpoint";

/// The order of a round's ranks for one purpose.
pub fn order(round: &Round, purpose: &[u8]) -> Order {
    Order::new(seeds::of_purpose(round.seed, purpose), round.clients as usize)
}

/// The first `count` of that order.
pub fn first(round: &Round, purpose: &[u8], count: usize) -> Order {
    Order::first(seeds::of_purpose(round.seed, purpose), round.clients as usize, count)
}

/// Witnesses elected among `clients` members when the config asks for `nodes` (0 = all), at most 32.
pub fn elected(nodes: u8, clients: u16) -> u8 {
    let wanted = if nodes == 0 { clients } else { u16::from(nodes).min(clients) };
    wanted.min(crate::constants::MAX_WITNESSES as u16) as u8
}

/// Members of the running round that have attested or still can. Who leaves makes room for the next in the order of the
/// witnesses; a vote that counts does not.
fn seated(round: &Round, members: &Members) -> Bitmap {
    bitmap::both(&round.roster, &bitmap::either(&round.attested, &members::healthy(members)))
}

/// Elects anew among those who stayed, after a member has gone: where fewer are left than were elected, all of these are
/// witnesses, and their quorum counts. It has gone by its own word or by that of a quorum, so a vote that
/// counts still is one of the denominator, and nobody else's silence makes that smaller.
#[inline(never)]
pub fn reelect(run: &mut Run, members: &Members) {
    if matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        let head = run.ring(0);
        let round = &mut run.rounds[head];
        let seated = bitmap::count(&seated(round, members));
        round.elected = u32::from(round.elected).min(seated) as u8;
    }
}

/// Whether a healthy member of the running round is one of its witnesses.
#[inline(never)]
pub fn is_witness(round: &Round, members: &Members, slot: u8) -> bool {
    if !bitmap::has(&round.roster, slot) {
        return false;
    }
    if u16::from(round.elected) >= round.clients {
        return true;
    }
    let rank = bitmap::rank(&round.roster, slot) as u8;
    let among_first = first(round, WITNESS, round.elected as usize).ranks().contains(&rank);
    among_first || bitmap::has(&witnesses(round, members), slot) // whoever leaves, those who were first stay witnesses
}

/// The witnesses of the running round: the first `elected` of those seated, in the round's order.
#[inline(never)]
pub fn witnesses(round: &Round, members: &Members) -> Bitmap {
    let seated = seated(round, members);
    let elected = usize::from(round.elected);
    if elected >= bitmap::count(&seated) as usize {
        return seated;
    }
    let (slots, _) = bitmap::by_rank(&round.roster);
    let mut result = [0; 32];
    let order = order(round, WITNESS);
    let ordered = order.ranks().iter().map(|rank| slots[*rank as usize]);
    for slot in ordered.filter(|slot| bitmap::has(&seated, *slot)).take(elected) {
        bitmap::set(&mut result, slot);
    }
    result
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
