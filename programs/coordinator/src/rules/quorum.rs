//! Quorum and the tally of participation.

use super::bitmap;
use crate::{constants::Bitmap, state::Attestation};

/// Counters of up to 63 votes, one bit of every slot's counter per plane.
const PLANES: usize = 6;

/// ceil(2/3) of those elected, at least 1.
pub fn of(elected: u32) -> u32 {
    (2 * elected).div_ceil(3).max(1)
}

/// Slots that at least `quorum` attestations name, 64 at a time.
#[inline(never)]
pub fn tally(attestations: &[Attestation], quorum: u32) -> Bitmap {
    let mut result = [0; 32];
    if (attestations.len() as u32) < quorum {
        return result;
    }
    for index in 0..bitmap::WORDS {
        let words = attestations.iter().map(|attestation| bitmap::word(&attestation.participation, index));
        let first = words.clone().next().unwrap_or(0);
        // honest witnesses agree
        let same = words.clone().all(|word| word == first);
        bitmap::set_word(&mut result, index, if same { first } else { count(words, quorum) });
    }
    result
}

/// Bits set in at least `quorum` words, by ripple-carry counters in bit planes.
fn count(words: impl Iterator<Item = u64>, quorum: u32) -> u64 {
    let mut planes = [0u64; PLANES];
    for word in words {
        let mut carry = word;
        for plane in planes.iter_mut() {
            let sum = *plane ^ carry;
            carry &= *plane;
            *plane = sum;
        }
    }
    at_least(&planes, quorum)
}

/// Slots whose counter is at least `quorum`: compares from the lowest plane up.
fn at_least(planes: &[u64; PLANES], quorum: u32) -> u64 {
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
        let mut attestations =
            [Attestation { slot: 0, pad: [0; 7], participation: [0; 32], fingerprints: [0; 320] }; 32];
        for (index, attestation) in attestations.iter_mut().enumerate() {
            for slot in 0..=255u8 {
                if (slot as usize * 7 + index * 13) % 32 <= index {
                    bitmap::set(&mut attestation.participation, slot);
                }
            }
        }
        for quorum in 1..=32 {
            let result = tally(&attestations, quorum);
            for slot in 0..=255u8 {
                let votes = attestations.iter().filter(|a| bitmap::has(&a.participation, slot)).count();
                assert_eq!(bitmap::has(&result, slot), votes as u32 >= quorum);
            }
        }
    }
}
