//! Set operations on bitmaps of member seats, a word of 64 seats at a time.

use crate::constants::{Bitmap, MAX_MEMBERS};
use alloc::{boxed::Box, vec};

pub const WORDS: usize = 4;

/// Return word `index` (64 seats) of a set.
#[inline(always)]
pub fn word(set: &Bitmap, index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&set[8 * index..8 * index + 8]);
    u64::from_le_bytes(bytes)
}

#[inline(always)]
pub fn set_word(set: &mut Bitmap, index: usize, word: u64) {
    set[8 * index..8 * index + 8].copy_from_slice(&word.to_le_bytes());
}

#[inline(always)]
pub fn has(set: &Bitmap, seat: u8) -> bool {
    set[seat as usize / 8] >> (seat % 8) & 1 == 1
}

#[inline(always)]
pub fn set(set: &mut Bitmap, seat: u8) {
    set[seat as usize / 8] |= 1 << (seat % 8);
}

#[inline(always)]
pub fn clear(set: &mut Bitmap, seat: u8) {
    set[seat as usize / 8] &= !(1 << (seat % 8));
}

/// Return the set of one seat.
pub fn only(seat: u8) -> Bitmap {
    let mut result = [0; 32];
    set(&mut result, seat);
    result
}

pub fn is_empty(set: &Bitmap) -> bool {
    (0..WORDS).all(|index| word(set, index) == 0)
}

pub fn is_subset(inner: &Bitmap, outer: &Bitmap) -> bool {
    (0..WORDS).all(|index| word(inner, index) & !word(outer, index) == 0)
}

pub fn intersects(left: &Bitmap, right: &Bitmap) -> bool {
    (0..WORDS).any(|index| word(left, index) & word(right, index) != 0)
}

pub fn without(left: &Bitmap, right: &Bitmap) -> Bitmap {
    combine(left, right, |left, right| left & !right)
}

pub fn both(left: &Bitmap, right: &Bitmap) -> Bitmap {
    combine(left, right, |left, right| left & right)
}

pub fn either(left: &Bitmap, right: &Bitmap) -> Bitmap {
    combine(left, right, |left, right| left | right)
}

#[inline(always)]
fn combine(left: &Bitmap, right: &Bitmap, with: impl Fn(u64, u64) -> u64) -> Bitmap {
    let mut result = [0; 32];
    for index in 0..WORDS {
        set_word(&mut result, index, with(word(left, index), word(right, index)));
    }
    result
}

pub fn count(set: &Bitmap) -> u32 {
    (0..WORDS).map(|index| word(set, index).count_ones()).sum()
}

/// Return the number of members below `seat`: its index in everything that is ordered by rank.
pub fn rank(set: &Bitmap, seat: u8) -> u32 {
    let full_words = seat as usize / 64;
    let bit = seat as u32 % 64;
    let below: u32 = (0..full_words).map(|index| word(set, index).count_ones()).sum();
    below + (word(set, full_words) & ((1 << bit) - 1)).count_ones()
}

/// Return the seat of a set that has this rank, or None if the set is too small.
pub fn nth(set: &Bitmap, mut rank: u32) -> Option<u8> {
    for index in 0..WORDS {
        let mut rest = word(set, index);
        let count = rest.count_ones();
        if rank < count {
            for _ in 0..rank {
                rest &= rest.wrapping_sub(1);
            }
            return Some((64 * index) as u8 + rest.trailing_zeros() as u8);
        }
        rank -= count;
    }
    None
}

/// Return the seats of a set in ascending order. Use it for small or rare sets: finding a bit costs 30 units on sBPF.
pub fn seats(set: &Bitmap) -> impl Iterator<Item = usize> + '_ {
    (0..WORDS).flat_map(move |index| {
        let mut rest = word(set, index);
        core::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(64 * index + bit)
        })
    })
}

/// Return the seats of a set by rank, and their number.
pub fn by_rank(set: &Bitmap) -> (Box<[u8; MAX_MEMBERS]>, usize) {
    let mut seats = bytes();
    let mut count = 0usize;
    for index in 0..WORDS {
        let mut rest = word(set, index);
        let mut seat = 64 * index;
        while rest != 0 {
            // Every seat is written, and overwritten by the next unless it is in the set: cheaper than a branch.
            seats[count & (MAX_MEMBERS - 1)] = seat as u8;
            count = count.wrapping_add((rest & 1) as usize);
            rest >>= 1;
            seat = seat.wrapping_add(1);
        }
    }
    (seats, count)
}

/// Return 256 zero bytes on the heap, because a stack frame has only 4 kB.
pub fn bytes() -> Box<[u8; MAX_MEMBERS]> {
    match vec![0u8; MAX_MEMBERS].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => Box::new([0; MAX_MEMBERS]),
    }
}
