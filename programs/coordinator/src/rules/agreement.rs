//! Whose results a quorum of witnesses recorded alike.
//!
//! A member has delivered if a quorum recorded the same fingerprint of its result: who shows each peer another one has
//! delivered to nobody. The candidates come from a majority vote that every attestation advances a little, and when the
//! round closes it is counted how many agree with them: a quorum is more than half, so what it agrees on is there. So is
//! what a plain majority agrees on.
//! Seats are treated 64 at a time (`Attestation::fingerprints`).

use super::{bitmap, quorum};
use crate::{
    constants::{Bitmap, FINGERPRINT_BYTES, VOTE_PLANES},
    state::{Attestation, Leading},
};
use alloc::vec::Vec;

/// Words of a set, and what the words of a field of fingerprints are taken apart by.
const WORDS: usize = bitmap::WORDS;

/// Words of 64 seats that fingerprints are made for: 1, 2 or 4. The fewer, the longer the fingerprints.
pub fn columns(roster: &Bitmap) -> usize {
    match [1, 2, 3].map(|index| bitmap::word(roster, index) == 0) {
        [true, true, true] => 1,
        [false, true, true] => 2,
        _ => WORDS,
    }
}

/// Adds the votes of one attestation, the `first` of its round or a later one.
#[inline(never)]
pub fn vote(leading: &mut Leading, attestation: &Attestation, columns: usize, first: bool) {
    if first {
        leading.participation = attestation.participation;
        leading.fingerprints = attestation.fingerprints;
        leading.margins = [[0; 32]; VOTE_PLANES];
        leading.margins[0] = [0xff; 32];
    } else {
        advance(leading, attestation, columns);
    }
}

/// The votes of a round, which reaches into the first `columns`, and what they are counted with.
pub struct Votes<'a> {
    pub attestations: &'a [Attestation],
    pub leading: &'a Leading,
    pub columns: usize,
    pub quorum: u32,
}

/// Seats whose result enough attestations recorded alike.
#[derive(Clone, Copy)]
pub struct Agreed {
    /// A quorum of those elected.
    pub by_quorum: Bitmap,
    /// More than half of those who attested.
    pub by_majority: Bitmap,
}

/// Returns the seats of which a quorum, and of which a majority, recorded the same result. Nobody if there is no quorum.
#[inline(never)]
pub fn agreed(votes: &Votes) -> Agreed {
    let Votes { attestations, leading, quorum, .. } = *votes;
    if (attestations.len() as u32) < quorum {
        return Agreed { by_quorum: [0; 32], by_majority: [0; 32] };
    }
    let alike =
        |one: &Attestation| one.participation == leading.participation && one.fingerprints == leading.fingerprints;
    if attestations.iter().all(alike) {
        // honest witnesses agree
        return Agreed { by_quorum: leading.participation, by_majority: leading.participation };
    }
    count(votes)
}

/// Seats for which the attestation and what leads name different results, or only one of them names any.
#[inline(always)]
fn differences(leading: &Leading, attestation: &Attestation, columns: usize) -> [u64; WORDS] {
    let (ours, theirs) = (&leading.fingerprints, &attestation.fingerprints);
    let mut different = [0; WORDS];
    for (index, result) in different.iter_mut().enumerate() {
        *result = every_fourth(ours, theirs, index);
    }
    // every plane takes `columns` words
    match columns {
        1 => different[0] |= different[1] | different[2] | different[3],
        2 => (different[0], different[1]) = (different[0] | different[2], different[1] | different[3]),
        _ => {}
    }
    for (column, result) in different.iter_mut().enumerate().take(columns) {
        let ours = bitmap::word(&leading.participation, column);
        let theirs = bitmap::word(&attestation.participation, column);
        *result = (ours ^ theirs) | (ours & theirs & *result);
    }
    different
}

/// The bits in which the words `first`, `first` + 4, … of two fields differ. Unrolled: loops cost more than the work.
#[inline(always)]
fn every_fourth(ours: &[u8; FINGERPRINT_BYTES], theirs: &[u8; FINGERPRINT_BYTES], first: usize) -> u64 {
    const SPAN: usize = FINGERPRINT_BYTES - 8 * (WORDS - 1);
    let (from, upto) = (8 * first, 8 * first + SPAN);
    let (Some(ours), Some(theirs)) = (ours.get(from..upto), theirs.get(from..upto)) else { return 0 };
    let (Ok(ours), Ok(theirs)) = (<&[u8; SPAN]>::try_from(ours), <&[u8; SPAN]>::try_from(theirs)) else { return 0 };
    let differ = |index: usize| word(ours, WORDS * index) ^ word(theirs, WORDS * index);
    differ(0)
        | differ(1)
        | differ(2)
        | differ(3)
        | differ(4)
        | differ(5)
        | differ(6)
        | differ(7)
        | differ(8)
        | differ(9)
}

/// For each attestation the seats, a word for 64, for which it and what leads name different results.
#[inline(never)]
pub fn disagreeing(leading: &Leading, attestations: &[Attestation], columns: usize) -> Vec<[u64; WORDS]> {
    let mut result = alloc::vec![[0u64; WORDS]; attestations.len()];
    for (different, attestation) in result.iter_mut().zip(attestations) {
        *different = differences(leading, attestation, columns);
    }
    result
}

fn count(votes: &Votes) -> Agreed {
    let Votes { attestations, leading, columns, quorum } = *votes;
    let disagreeing = disagreeing(leading, attestations, columns);
    let majority = quorum::majority(attestations.len() as u32);
    let mut result = Agreed { by_quorum: [0; 32], by_majority: [0; 32] };
    for column in 0..columns.min(WORDS) {
        let leads = bitmap::word(&leading.participation, column);
        let planes = quorum::planes(disagreeing.iter().map(|different| !different[column]));
        bitmap::set_word(&mut result.by_quorum, column, quorum::at_least(&planes, quorum) & leads);
        bitmap::set_word(&mut result.by_majority, column, quorum::at_least(&planes, majority) & leads);
    }
    result
}

/// One step of the majority vote, in every seat at once: who agrees adds to the margin, who does not takes from it, or
/// replaces what leads by nothing any more.
fn advance(leading: &mut Leading, attestation: &Attestation, columns: usize) {
    let different = differences(leading, attestation, columns);
    let mut replaced = [0u64; WORDS];
    for (column, different) in different.into_iter().enumerate().take(columns) {
        let open = !leading.margins.iter().fold(0, |any, plane| any | bitmap::word(plane, column));
        let (mut carry, mut borrow) = (!different | open, different & !open);
        for plane in leading.margins.iter_mut() {
            let digit = bitmap::word(plane, column);
            bitmap::set_word(plane, column, digit ^ carry ^ borrow);
            carry &= digit;
            borrow &= !digit;
        }
        replaced[column] = different & open;
    }
    if replaced == [0; WORDS] {
        return;
    }
    mix(&mut leading.participation, &attestation.participation, &replaced[..columns]);
    mix(&mut leading.fingerprints, &attestation.fingerprints, &replaced[..columns]);
}

/// Takes the bits of the `replaced` seats from `theirs`.
fn mix(ours: &mut [u8], theirs: &[u8], replaced: &[u64]) {
    let words = ours.chunks_exact_mut(8).zip(theirs.chunks_exact(8)).zip(replaced.iter().cycle());
    for ((ours, theirs), replaced) in words {
        let old = word(ours, 0);
        let new = old ^ (old ^ word(theirs, 0)) & replaced;
        ours.copy_from_slice(&new.to_le_bytes());
    }
}

#[inline(always)]
fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use bytemuck::Zeroable;

    /// The fingerprint of a seat, its participation included; None if it has not delivered.
    fn of_seat(attestation: &Attestation, seat: u8, columns: usize) -> Option<u64> {
        let (column, bit) = (seat as usize / 64, seat % 64);
        let bits = (0..40 / columns).map(|plane| word(&attestation.fingerprints, plane * columns + column) >> bit & 1);
        let value = bits.enumerate().fold(0, |value, (plane, bit)| value | bit << plane);
        bitmap::has(&attestation.participation, seat).then_some(value)
    }

    #[test]
    fn agreement_equals_counting() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        for case in 0..100 {
            let columns = [1, 2, 4][case % 3];
            let witnesses = 1 + random() as usize % 32;
            let kinds: Vec<Attestation> = (0..3)
                .map(|_| {
                    let mut kind = Attestation::zeroed();
                    kind.participation.iter_mut().for_each(|byte| *byte = random() as u8 | random() as u8);
                    kind.fingerprints.iter_mut().for_each(|byte| *byte = random() as u8);
                    kind
                })
                .collect();
            let mut leading = Leading::zeroed();
            let mut given = Vec::new();
            for index in 0..witnesses {
                let mut one = kinds[if random() % 4 < 3 { 0 } else { random() as usize % 3 }];
                for _ in 0..random() % 9 {
                    one.participation[random() as usize % 32] ^= 1 << (random() % 8);
                    one.fingerprints[random() as usize % 320] ^= 1 << (random() % 8);
                }
                vote(&mut leading, &one, columns, index == 0);
                given.push(one);
            }
            for needed in (witnesses as u32 / 2 + 1)..=witnesses as u32 {
                let found = agreed(&Votes { attestations: &given, leading: &leading, columns, quorum: needed });
                let majority = quorum::majority(witnesses as u32);
                for seat in 0..64 * columns {
                    let mut votes = BTreeMap::new();
                    for value in given.iter().filter_map(|one| of_seat(one, seat as u8, columns)) {
                        *votes.entry(value).or_insert(0u32) += 1;
                    }
                    for (seats, least) in [(&found.by_quorum, needed), (&found.by_majority, majority)] {
                        let enough = votes.values().any(|count| *count >= least);
                        assert_eq!(bitmap::has(seats, seat as u8), enough, "case {case}, seat {seat}, of {least}");
                    }
                }
            }
        }
    }
}
