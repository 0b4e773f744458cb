//! Assign the data of a round: each member trains a share proportional to its weight, in shuffled order.

use super::{bitmap, committee, shuffle::Order};
use crate::{
    constants::{Bitmap, MAX_MEMBERS},
    state::{established_only, Members, Round},
};
use alloc::boxed::Box;

const LAST: usize = MAX_MEMBERS - 1;

/// A member's interval of positions `[start, start + len)` in a round's batch.
pub struct Share {
    pub seat: u8,
    pub start: u16,
    pub len: u16,
}

/// Return how many sequences of a batch the established members would train if all members of `roster` shared it.
///
/// All sums are far below 64 bits.
#[inline(never)]
pub fn established_share(members: &Members, roster: &Bitmap, batch: u16) -> u16 {
    let mut total = 0u64;
    let mut of_established = 0u64;
    for index in 0..bitmap::WORDS {
        let mut roster = bitmap::word(roster, index);
        let mut judges = bitmap::word(&members.judges, index);
        let mut seat = 64 * index;
        while roster != 0 {
            let weight = u64::from(members.seats[seat & LAST].weight).wrapping_mul(roster & 1);
            total = total.wrapping_add(weight);
            of_established = of_established.wrapping_add(weight.wrapping_mul(judges & 1));
            roster >>= 1;
            judges >>= 1;
            seat = seat.wrapping_add(1);
        }
    }
    (u64::from(batch).wrapping_mul(of_established) / total.max(1)) as u16
}

/// Return the first position and the length of the share of each seat.
#[inline(never)]
pub fn by_seat(round: &Round, began: &Bitmap, members: &Members) -> Box<[[u16; 2]; MAX_MEMBERS]> {
    let mut result = Box::new([[0; 2]; MAX_MEMBERS]);
    for share in Plan::new(round, began, members).shares() {
        result[share.seat as usize] = [share.start, share.len];
    }
    result
}

/// The shares of all members of one round.
///
/// Nothing here can overflow (256 weights of 16 bits, a batch of 16 bits), so nothing is checked: a checked 64-bit
/// product needs 128-bit arithmetic, which sBPF lacks, and this is the most expensive part of closing a round.
pub struct Plan {
    order: Order,
    /// By rank.
    seats: Box<[u8; MAX_MEMBERS]>,
    /// By rank.
    weights: Box<[u16; MAX_MEMBERS]>,
    total: u64,
    batch: u64,
}

impl Plan {
    #[inline(never)]
    pub fn new(round: &Round, began: &Bitmap, members: &Members) -> Self {
        let mut seats = bitmap::bytes();
        let mut weights = Box::new([0u16; MAX_MEMBERS]);
        let mut total = 0u64;
        let mut rank = 0usize;
        let trainers = if round.established == established_only::TRAIN { members.judges } else { [0xff; 32] };
        for index in 0..bitmap::WORDS {
            let mut rest = bitmap::word(began, index);
            let mut seat = 64 * index;
            let mut members_of_round = bitmap::word(&round.roster, index) & bitmap::word(&trainers, index);
            while rest != 0 {
                // Every seat is written, and overwritten by the next unless it began the epoch: cheaper than a branch.
                let weight = u64::from(members.seats[seat & LAST].weight).wrapping_mul(members_of_round & 1);
                seats[rank & LAST] = seat as u8;
                weights[rank & LAST] = weight as u16;
                total = total.wrapping_add(weight);
                rank = rank.wrapping_add((rest & 1) as usize);
                rest >>= 1;
                members_of_round >>= 1;
                seat = seat.wrapping_add(1);
            }
        }
        let order = committee::order(round, began, committee::DATA);
        Self { order, seats, weights, total: total.max(1), batch: u64::from(round.batch) }
    }

    /// Return the shares in ascending order of positions. Each member that began the epoch has one, possibly empty.
    ///
    /// Cumulative rounding: the share at position p ends at floor(batch * (w_0 + ... + w_p) / total).
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        let mut cumulative = 0u64;
        let mut start = 0u16;
        self.order.ranks().iter().map(move |rank| {
            cumulative = cumulative.wrapping_add(u64::from(self.weights[*rank as usize]));
            let end = (self.batch.wrapping_mul(cumulative) / self.total) as u16;
            let share = Share { seat: self.seats[*rank as usize], start, len: end.wrapping_sub(start) };
            start = end;
            share
        })
    }
}
