//! Which member trains which part of a round: shares proportional to declared weights, in shuffled order.

use super::{
    bitmap, committee,
    shuffle::{bytes, Order},
};
use crate::{
    constants::MAX_MEMBERS,
    state::{Members, Round},
};
use alloc::{boxed::Box, vec::Vec};

const LAST: usize = MAX_MEMBERS - 1;

/// A member's interval of positions `[start, start + len)` in a round's batch.
pub struct Share {
    pub rank: u8,
    pub slot: u8,
    pub start: u16,
    pub len: u16,
}

/// Everybody's shares of one round.
pub struct Plan {
    order: Order,
    slots: Box<[u8; MAX_MEMBERS]>,
    /// By rank; 0 for verifiers.
    weights: Vec<u16>,
    total: u64,
    batch: u64,
}

impl Plan {
    #[inline(never)]
    pub fn new(round: &Round, members: &Members, percent: u8) -> Self {
        let clients = (round.clients as usize).min(MAX_MEMBERS);
        let mut slots = bytes();
        let mut weights = alloc::vec![0u16; MAX_MEMBERS];
        for (rank, slot) in bitmap::slots(&round.roster).take(clients).enumerate() {
            slots[rank & LAST] = slot as u8;
            weights[rank & LAST] = members.slots[slot].weight;
        }
        let verifiers = committee::verifiers(round.clients, percent) as usize;
        if verifiers > 0 {
            for rank in committee::order(round, committee::COMMITTEE).ranks().iter().take(verifiers) {
                weights[*rank as usize] = 0;
            }
        }
        let total = weights.iter().map(|weight| u64::from(*weight)).sum();
        let order = committee::order(round, committee::DATA);
        Self { order, slots, weights, total, batch: u64::from(round.batch) }
    }

    /// The shares in ascending order of positions; every member has one, possibly empty.
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        let mut before = 0u64;
        let mut start = 0u64;
        self.order.ranks().iter().map(move |rank| {
            before += u64::from(self.weights[*rank as usize]);
            // below 2^16 * 2^24: an overflow check would need 128-bit arithmetic
            let end = self.batch.wrapping_mul(before).checked_div(self.total).unwrap_or(0);
            let share =
                Share { rank: *rank, slot: self.slots[*rank as usize], start: start as u16, len: (end - start) as u16 };
            start = end;
            share
        })
    }
}
