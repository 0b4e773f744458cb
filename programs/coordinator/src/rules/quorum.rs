//! Quorum, and the tally of participation.

use super::bitmap;
use crate::{
    constants::{Bitmap, VOTE_PLANES as PLANES},
    state::{established_only, Attestation, Round},
};

/// ceil(2/3) of those elected, at least 1.
pub fn of(elected: u32) -> u32 {
    (2 * elected).div_ceil(3).max(1)
}

/// The quorum of a round's witnesses. Where only established members witness, it is at least two: one that is left alone
/// would decide by itself who delivered and who is dropped.
pub fn of_round(round: &Round, elected: u32) -> u32 {
    let least = if round.established == established_only::NOTHING { 1 } else { 2 };
    of(elected).max(least)
}

/// More than half. Where nobody has shown anything yet a minority must neither take the others' word nor have its own.
pub fn majority(of: u32) -> u32 {
    of / 2 + 1
}

/// Seats that at least `quorum` attestations name, of which there are as many or more, 64 at a time.
pub(super) fn tally<'a>(attestations: impl Iterator<Item = &'a Attestation> + Clone, quorum: u32) -> Bitmap {
    let mut result = [0; 32];
    for index in 0..bitmap::WORDS {
        let words = attestations.clone().map(|attestation| bitmap::word(&attestation.participation, index));
        let first = words.clone().next().unwrap_or(0);
        // honest witnesses agree
        let same = words.clone().all(|word| word == first);
        bitmap::set_word(&mut result, index, if same { first } else { count(words, quorum) });
    }
    result
}

/// Seats that at least `quorum` attestations leave out; none when there are fewer attestations than that.
pub fn left_out<'a>(attestations: impl Iterator<Item = &'a Attestation> + Clone, quorum: u32) -> Bitmap {
    let count = attestations.clone().count() as u32;
    if count < quorum {
        return [0; 32];
    }
    bitmap::without(&[0xff; 32], &tally(attestations, count + 1 - quorum))
}

/// Bits set in at least `quorum` words (at most 63).
pub(super) fn count(words: impl Iterator<Item = u64>, quorum: u32) -> u64 {
    at_least(&planes(words), quorum)
}

/// Counts the words (at most 63) that set each bit; the counters are in bit planes. Four words at a time are added up
/// before the carry ripples on (Harley-Seal), which halves the work.
#[inline(always)]
pub(super) fn planes(mut words: impl Iterator<Item = u64>) -> [u64; PLANES] {
    let mut planes = [0u64; PLANES];
    while let Some(first) = words.next() {
        let [second, third, fourth] = core::array::from_fn(|_| words.next().unwrap_or(0));
        let (sum, low) = add(planes[0], first, second);
        let (sum, high) = add(sum, third, fourth);
        planes[0] = sum;
        let (sum, mut carry) = add(planes[1], low, high);
        planes[1] = sum;
        for plane in planes[2..].iter_mut() {
            let sum = *plane ^ carry;
            carry &= *plane;
            *plane = sum;
        }
    }
    planes
}

/// Adds three bits in every place: the sums and the carries.
#[inline(always)]
fn add(left: u64, middle: u64, right: u64) -> (u64, u64) {
    let both = left ^ middle;
    (both ^ right, left & middle | both & right)
}

/// Seats whose counter is at least `quorum`: compares from the lowest plane up.
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
    fn tally_equals_counting() {
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
