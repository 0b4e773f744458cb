//! Find the members whose results a quorum of witnesses recorded alike.
//!
//! A quorum must record the same fingerprint, so a member that sends every peer a different result has delivered to
//! nobody. Each attestation advances a Boyer-Moore majority vote about each seat: a result that more than half recorded
//! leads at the end. Closing the round counts the attestations that agree with it. Seats are handled 64 at a time.

use super::{bitmap, quorum};
use crate::{
    constants::{Bitmap, FINGERPRINT_BYTES, VOTE_PLANES},
    state::{Attestation, Leading},
};
use alloc::vec::Vec;

/// Words of a set, and the stride of the words in a field of fingerprints.
const WORDS: usize = bitmap::WORDS;

/// Return how many words of 64 seats have fingerprints: 1, 2 or 4. Fewer columns give longer fingerprints.
pub fn columns(roster: &Bitmap) -> usize {
    match [1, 2, 3].map(|index| bitmap::word(roster, index) == 0) {
        [true, true, true] => 1,
        [false, true, true] => 2,
        _ => WORDS,
    }
}

/// Add the votes of one attestation to the majority vote. The first attestation of a round resets it.
#[inline(never)]
pub fn vote(leading: &mut Leading, attestation: &Attestation, columns: usize, is_first: bool) {
    if is_first {
        leading.participation = attestation.participation;
        leading.fingerprints = attestation.fingerprints;
        leading.margins = [[0; 32]; VOTE_PLANES];
        leading.margins[0] = [0xff; 32];
    } else {
        advance(leading, attestation, columns);
    }
}

/// The votes of a round. The judged roster lies in the first `columns` words.
pub struct Votes<'a> {
    pub attestations: &'a [Attestation],
    pub leading: &'a Leading,
    pub columns: usize,
    pub quorum: u32,
}

/// Seats whose result enough attestations recorded alike.
#[derive(Clone, Copy)]
pub struct Agreed {
    /// A quorum of the elected witnesses did.
    pub by_quorum: Bitmap,
    /// More than half of the witnesses that attested did.
    pub by_majority: Bitmap,
}

/// Return the seats whose result a quorum, and a majority, recorded alike. Return no seats if there is no quorum.
#[inline(never)]
pub fn agreed(votes: &Votes) -> Agreed {
    let Votes { attestations, leading, quorum, .. } = *votes;
    if (attestations.len() as u32) < quorum {
        return Agreed { by_quorum: [0; 32], by_majority: [0; 32] };
    }
    let alike =
        |one: &Attestation| one.participation == leading.participation && one.fingerprints == leading.fingerprints;
    if attestations.iter().all(alike) {
        // The usual case: honest witnesses agree.
        return Agreed { by_quorum: leading.participation, by_majority: leading.participation };
    }
    count(votes)
}

/// Return the seats for which the attestation differs from the leading result: only one has a result, or both differ.
#[inline(always)]
fn differences(leading: &Leading, attestation: &Attestation, columns: usize) -> [u64; WORDS] {
    let mut different = [0; WORDS];
    for (index, result) in different.iter_mut().enumerate() {
        *result = every_fourth(&leading.fingerprints, &attestation.fingerprints, index);
    }
    // Each plane has `columns` words, so with fewer columns several of the four words belong to the same seats.
    match columns {
        1 => different[0] |= different[1] | different[2] | different[3],
        2 => {
            different[0] |= different[2];
            different[1] |= different[3];
        }
        _ => {}
    }
    for (column, result) in different.iter_mut().enumerate().take(columns) {
        let ours = bitmap::word(&leading.participation, column);
        let theirs = bitmap::word(&attestation.participation, column);
        *result = (ours ^ theirs) | (ours & theirs & *result);
    }
    different
}

/// Return the bits in which the words `first`, `first` + 4, … of two fields differ. Unrolled, because a loop costs more
/// than its work.
#[inline(always)]
fn every_fourth(ours: &[u8; FINGERPRINT_BYTES], theirs: &[u8; FINGERPRINT_BYTES], first: usize) -> u64 {
    const SPAN: usize = FINGERPRINT_BYTES - 8 * (WORDS - 1);
    let start = 8 * first;
    let end = start + SPAN;
    let (Some(ours), Some(theirs)) = (ours.get(start..end), theirs.get(start..end)) else { return 0 };
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

/// Return, for each attestation, the seats for which it differs from the leading result, as words of 64 seats.
#[inline(never)]
pub fn disagreeing(leading: &Leading, attestations: &[Attestation], columns: usize) -> Vec<[u64; WORDS]> {
    let mut result = alloc::vec![[0u64; WORDS]; attestations.len()];
    for (different, attestation) in result.iter_mut().zip(attestations) {
        *different = differences(leading, attestation, columns);
    }
    result
}

/// Count how many attestations agree with the leading result of each seat.
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

/// Perform one step of the majority vote for all seats at once: agreement raises the margin, and disagreement lowers
/// it, or replaces the leading result if the margin is 0.
fn advance(leading: &mut Leading, attestation: &Attestation, columns: usize) {
    let different = differences(leading, attestation, columns);
    let mut replaced = [0u64; WORDS];
    for (column, different) in different.into_iter().enumerate().take(columns) {
        let no_margin = !leading.margins.iter().fold(0, |any, plane| any | bitmap::word(plane, column));
        let mut carry = !different | no_margin;
        let mut borrow = different & !no_margin;
        for plane in leading.margins.iter_mut() {
            let digit = bitmap::word(plane, column);
            bitmap::set_word(plane, column, digit ^ carry ^ borrow);
            carry &= digit;
            borrow &= !digit;
        }
        replaced[column] = different & no_margin;
    }
    if replaced == [0; WORDS] {
        return;
    }
    mix(&mut leading.participation, &attestation.participation, &replaced[..columns]);
    mix(&mut leading.fingerprints, &attestation.fingerprints, &replaced[..columns]);
}

/// Copy the bits of the `replaced` seats from `theirs` to `ours`.
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

    /// Return the fingerprint of a seat, or None if the witness has no result of it.
    fn of_seat(attestation: &Attestation, seat: u8, columns: usize) -> Option<u64> {
        let column = seat as usize / 64;
        let bit = seat % 64;
        let bits = (0..40 / columns).map(|plane| word(&attestation.fingerprints, plane * columns + column) >> bit & 1);
        let value = bits.enumerate().fold(0, |value, (plane, bit)| value | bit << plane);
        bitmap::has(&attestation.participation, seat).then_some(value)
    }

    #[test]
    fn agreed_equals_counting() {
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
            let mut attestations = Vec::new();
            for index in 0..witnesses {
                let mut one = kinds[if random() % 4 < 3 { 0 } else { random() as usize % 3 }];
                for _ in 0..random() % 9 {
                    one.participation[random() as usize % 32] ^= 1 << (random() % 8);
                    one.fingerprints[random() as usize % 320] ^= 1 << (random() % 8);
                }
                vote(&mut leading, &one, columns, index == 0);
                attestations.push(one);
            }
            for needed in (witnesses as u32 / 2 + 1)..=witnesses as u32 {
                let agreed = agreed(&Votes { attestations: &attestations, leading: &leading, columns, quorum: needed });
                let majority = quorum::majority(witnesses as u32);
                for seat in 0..64 * columns {
                    let mut votes = BTreeMap::new();
                    for value in attestations.iter().filter_map(|one| of_seat(one, seat as u8, columns)) {
                        *votes.entry(value).or_insert(0u32) += 1;
                    }
                    for (seats, threshold) in [(&agreed.by_quorum, needed), (&agreed.by_majority, majority)] {
                        let expected = votes.values().any(|count| *count >= threshold);
                        assert_eq!(
                            bitmap::has(seats, seat as u8),
                            expected,
                            "case {case}, seat {seat}, threshold {threshold}"
                        );
                    }
                }
            }
        }
    }
}
