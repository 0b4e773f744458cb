//! The one shuffle of the protocol: Fisher-Yates over ranks, driven by a 64-bit linear congruential generator.
//!
//! Indices come from the generator's high half. Its low bits have short periods (the lowest alternates), which would
//! make `state % (i + 1)` predictable for even moduli.

use crate::constants::MAX_MEMBERS;
use alloc::{boxed::Box, vec};

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;
const LAST: usize = MAX_MEMBERS - 1;

/// A permutation of the ranks `0..len`.
pub struct Order {
    ranks: Box<[u8; MAX_MEMBERS]>,
    len: usize,
}

impl Order {
    /// Shuffles `len` ranks (at most 256) from the generator's initial `state`.
    #[inline(never)]
    pub fn new(mut state: u64, len: usize) -> Self {
        let len = len.min(MAX_MEMBERS);
        let mut ranks = bytes();
        for (rank, entry) in ranks.iter_mut().enumerate() {
            *entry = rank as u8;
        }
        for last in (1..len).rev() {
            state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
            let other = ((state >> 32) % (last as u64 + 1)) as usize;
            // the masks change nothing; they spare the bounds checks
            let (last, other) = (last & LAST, other & LAST);
            let moved = ranks[last];
            ranks[last] = ranks[other];
            ranks[other] = moved;
        }
        Self { ranks, len }
    }

    /// Ranks by position.
    pub fn ranks(&self) -> &[u8] {
        &self.ranks[..self.len]
    }
}

/// 256 zero bytes on the heap: a stack frame holds 4 kB only.
pub fn bytes() -> Box<[u8; MAX_MEMBERS]> {
    match vec![0u8; MAX_MEMBERS].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => Box::new([0; MAX_MEMBERS]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_a_permutation() {
        for len in [0usize, 1, 2, 3, 17, 255, 256] {
            let mut ranks = Order::new(len as u64 ^ 0x5eed, len).ranks().to_vec();
            ranks.sort_unstable();
            assert_eq!(ranks, (0..len).map(|rank| rank as u8).collect::<alloc::vec::Vec<u8>>());
        }
    }
}
