//! Which member trains which part of a round: shares proportional to declared weights, in shuffled order.

use super::{bitmap, committee, shuffle::Order};
use crate::{
    constants::MAX_MEMBERS,
    state::{Members, Round},
};
use alloc::{boxed::Box, vec::Vec};

/// A member's interval of positions `[start, start + len)` in a round's batch.
pub struct Share {
    pub rank: u8,
    pub slot: u8,
    pub start: u16,
    pub len: u16,
}

/// Everybody's shares of one round.
///
/// Nothing here can overflow (256 weights of 16 bits, a batch of 16 bits), so nothing is checked: a checked product of
/// 64 bits would need 128-bit arithmetic, which sBPF lacks, and this is the costliest part of closing a round.
pub struct Plan {
    order: Order,
    /// By rank.
    slots: Box<[u8; MAX_MEMBERS]>,
    /// By rank.
    weights: Vec<u16>,
    total: u64,
    batch: u64,
}

impl Plan {
    #[inline(never)]
    pub fn new(round: &Round, members: &Members, percent: u8) -> Self {
        let (slots, clients) = bitmap::by_rank(&round.roster);
        let mut weights = alloc::vec![0u16; MAX_MEMBERS];
        let mut total = 0u64;
        for (weight, slot) in weights.iter_mut().zip(slots.iter()).take(clients) {
            *weight = members.slots[*slot as usize].weight;
            total = total.wrapping_add(u64::from(*weight));
        }
        let verifiers = committee::verifiers(round.clients, percent) as usize;
        if verifiers > 0 {
            for rank in committee::order(round, committee::COMMITTEE).ranks().iter().take(verifiers) {
                total = total.wrapping_sub(u64::from(weights[*rank as usize]));
                weights[*rank as usize] = 0;
            }
        }
        let order = committee::order(round, committee::DATA);
        Self { order, slots, weights, total: total.max(1), batch: u64::from(round.batch) }
    }

    /// The shares in ascending order of positions; every member has one, possibly empty.
    ///
    /// Cumulative rounding: the share at position p ends at floor(batch * (w_0 + ... + w_p) / total).
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        let (mut before, mut start) = (0u64, 0u16);
        self.order.ranks().iter().map(move |rank| {
            before = before.wrapping_add(u64::from(self.weights[*rank as usize]));
            let end = (self.batch.wrapping_mul(before) / self.total) as u16;
            let share = Share { rank: *rank, slot: self.slots[*rank as usize], start, len: end.wrapping_sub(start) };
            start = end;
            share
        })
    }
}
