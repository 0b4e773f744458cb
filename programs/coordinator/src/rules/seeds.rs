//! Seeds of rounds and of the shuffles within a round.

use super::Moment;
use solana_sha256_hasher::hashv;

/// The seed that follows `old`; nobody knows it before the slot hash is known.
pub fn next(old: u64, moment: &Moment, step: u32) -> u64 {
    let step = u64::from(step).to_le_bytes();
    first_word(&[&old.to_le_bytes(), &moment.entropy, &moment.slot.to_le_bytes(), &step])
}

/// Initial state of the shuffle for one purpose of a round.
pub fn of_purpose(seed: u64, purpose: &[u8]) -> u64 {
    first_word(&[&seed.to_le_bytes(), purpose])
}

fn first_word(parts: &[&[u8]]) -> u64 {
    let hash = hashv(parts).to_bytes();
    let mut word = [0; 8];
    word.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(word)
}
