//! Quorums and majorities, and bit-sliced vote counts over all seats.

use super::bitmap;
use crate::{
    constants::{Bitmap, VOTE_PLANES as PLANES},
    state::{established_only, Attestation, Round},
};

/// Return the quorum of `elected` voters: two thirds, rounded up, at least one.
pub fn of(elected: u32) -> u32 {
    (2 * elected).div_ceil(3).max(1)
}

/// Return the quorum of a round's `elected` witnesses. If only established members witness, it is at least two: a
/// single one would decide alone who delivered and who is dropped.
pub fn of_round(round: &Round, elected: u32) -> u32 {
    let minimum = if round.established == established_only::NOTHING { 1 } else { 2 };
    of(elected).max(minimum)
}

/// Return the smallest majority of `voters`: more than half. It decides where no member is established, so that a
/// minority can neither block the others nor decide alone.
pub fn majority(voters: u32) -> u32 {
    voters / 2 + 1
}

/// Return the seats that at least `quorum` attestations name, counting 64 seats at a time. There must be at least
/// `quorum` attestations.
pub(super) fn tally<'a>(attestations: impl Iterator<Item = &'a Attestation> + Clone, quorum: u32) -> Bitmap {
    let mut result = [0; 32];
    for index in 0..bitmap::WORDS {
        let words = attestations.clone().map(|attestation| bitmap::word(&attestation.participation, index));
        let first_word = words.clone().next().unwrap_or(0);
        // The usual case: honest witnesses agree.
        let all_equal = words.clone().all(|word| word == first_word);
        bitmap::set_word(&mut result, index, if all_equal { first_word } else { count(words, quorum) });
    }
    result
}

/// Return the seats that at least `quorum` attestations leave out. Return no seat if there are fewer attestations.
pub fn left_out<'a>(attestations: impl Iterator<Item = &'a Attestation> + Clone, quorum: u32) -> Bitmap {
    let count = attestations.clone().count() as u32;
    if count < quorum {
        return [0; 32];
    }
    bitmap::without(&[0xff; 32], &tally(attestations, count + 1 - quorum))
}

/// Return the bits that are set in at least `quorum` of the words (at most 63).
pub(super) fn count(words: impl Iterator<Item = u64>, quorum: u32) -> u64 {
    at_least(&planes(words), quorum)
}

/// Count, for each bit, the words (at most 63) that set it. Return the counters as bit planes, lowest bit first. Adding
/// four words before the carry ripples on (Harley-Seal) halves the work.
#[inline(always)]
pub(super) fn planes(mut words: impl Iterator<Item = u64>) -> [u64; PLANES] {
    let mut planes = [0u64; PLANES];
    while let Some(first) = words.next() {
        let [second, third, fourth] = core::array::from_fn(|_| words.next().unwrap_or(0));
        let (ones, low_carry) = add(planes[0], first, second);
        let (ones, high_carry) = add(ones, third, fourth);
        planes[0] = ones;
        let (twos, mut carry) = add(planes[1], low_carry, high_carry);
        planes[1] = twos;
        for plane in planes[2..].iter_mut() {
            let sum = *plane ^ carry;
            carry &= *plane;
            *plane = sum;
        }
    }
    planes
}

/// Add three bits in each of 64 places (a full adder). Return the sums and the carries.
#[inline(always)]
fn add(left: u64, middle: u64, right: u64) -> (u64, u64) {
    let half_sum = left ^ middle;
    (half_sum ^ right, left & middle | half_sum & right)
}

/// Return the seats whose counter is at least `quorum`, comparing from the lowest plane up.
pub(super) fn at_least<const N: usize>(planes: &[u64; N], quorum: u32) -> u64 {
    let mut result = u64::MAX;
    for (bit, plane) in planes.iter().enumerate() {
        result = if quorum >> bit & 1 == 1 { plane & result } else { plane | result };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorum_is_two_thirds_rounded_up() {
        let expected = [1, 1, 2, 2, 3, 4, 4, 5, 6, 6];
        assert_eq!(core::array::from_fn::<u32, 10, _>(|elected| of(elected as u32)), expected);
        assert_eq!(of(32), 22);
    }

    #[test]
    fn tally_and_left_out_equal_counting() {
        let mut attestations = [Attestation { seat: 0, participation: [0; 32], fingerprints: [0; 320] }; 32];
        for (index, attestation) in attestations.iter_mut().enumerate() {
            for seat in 0..=255u8 {
                if (seat as usize * 7 + index * 13) % 32 <= index {
                    bitmap::set(&mut attestation.participation, seat);
                }
            }
        }
        for quorum in 1..=32 {
            let result = tally(attestations.iter(), quorum);
            for seat in 0..=255u8 {
                let votes = attestations.iter().filter(|a| bitmap::has(&a.participation, seat)).count();
                assert_eq!(bitmap::has(&result, seat), votes as u32 >= quorum);
                assert_eq!(bitmap::has(&left_out(attestations.iter(), quorum), seat), 32 - votes as u32 >= quorum);
            }
        }
    }
}
