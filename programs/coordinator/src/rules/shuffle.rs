//! The one shuffle of the protocol: Fisher-Yates over ranks, driven by a 64-bit linear congruential generator.
//!
//! Indices come from the generator's high half. Its low bits have short periods (the lowest alternates), which would
//! make `state % (i + 1)` predictable for even moduli.

use super::bitmap::bytes;
use crate::constants::MAX_MEMBERS;
use alloc::boxed::Box;

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;
/// Adds 8 to each of eight ranks at once. No rank exceeds 255 before the last addition.
const EIGHT_MORE: u64 = 0x0808_0808_0808_0808;
const LAST: usize = MAX_MEMBERS - 1;

/// A permutation of the ranks `0..len`, or the beginning of one.
pub struct Order {
    ranks: Box<[u8; MAX_MEMBERS]>,
    drawn: usize,
}

impl Order {
    /// Shuffle all of `len` ranks (at most 256) from the generator's initial `state`.
    pub fn new(state: u64, len: usize) -> Self {
        Self::first(state, len, len)
    }

    /// Return the first `drawn` ranks of the same shuffle. Positions are drawn in ascending order, so few cost little.
    #[inline(never)]
    pub fn first(mut state: u64, len: usize, drawn: usize) -> Self {
        let len = len.min(MAX_MEMBERS);
        let drawn = drawn.min(len);
        let mut ranks = bytes();
        let mut eight = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        for entry in ranks.chunks_exact_mut(8) {
            entry.copy_from_slice(&eight.to_le_bytes());
            eight = eight.wrapping_add(EIGHT_MORE);
        }
        let mut left = len as u64;
        let mut position = 0usize;
        let undrawn = (len - drawn) as u64;
        while left > undrawn {
            state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
            // The masks never change a value; they remove the bounds checks.
            let other = position.wrapping_add(((state >> 32) % left) as usize) & LAST;
            let rank = ranks[position];
            ranks[position] = ranks[other];
            ranks[other] = rank;
            left -= 1;
            position = position.wrapping_add(1) & LAST;
        }
        Self { ranks, drawn }
    }

    /// Return the drawn ranks by position.
    pub fn ranks(&self) -> &[u8] {
        &self.ranks[..self.drawn]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_order_is_a_permutation() {
        for len in [0usize, 1, 2, 3, 17, 255, 256] {
            let mut ranks = Order::new(len as u64 ^ 0x5eed, len).ranks().to_vec();
            ranks.sort_unstable();
            assert_eq!(ranks, (0..len).map(|rank| rank as u8).collect::<alloc::vec::Vec<u8>>());
        }
    }

    #[test]
    fn first_ranks_equal_start_of_whole_order() {
        for len in [0usize, 1, 2, 17, 256] {
            let whole = Order::new(0x5eed, len);
            for drawn in [0, 1, len / 2, len, len + 1] {
                assert_eq!(Order::first(0x5eed, len, drawn).ranks(), &whole.ranks()[..drawn.min(len)]);
            }
        }
    }
}
