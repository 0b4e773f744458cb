//! Seeds of rounds and of the shuffles within a round.
//!
//! Nobody chooses a seed. What it decides (the orders of those who began the epoch, and who of them is in the round) is
//! fixed by an instruction that also names a slot to come, and the seed is drawn from that slot's hash: by whichever
//! instruction comes first afterwards, which can draw nothing else. While a round runs, the seed of the next one is drawn.

use super::{slot_hashes, Moment};
use crate::state::{run_state, Run};
use solana_sha256_hasher::hashv;

/// Slots that one validator leads in a row.
const TURN: u64 = 4;

/// Fixes the slot that the next seed is drawn from: the first of the next validator's turn, so that the
/// validator that leads the present slot, and decides what is in it, seldom makes that hash too.
pub fn fix(run: &mut Run, moment: &Moment) {
    run.seed_slot = (moment.slot / TURN).wrapping_add(1).wrapping_mul(TURN);
}

/// Draws the seed that waits for its slot, once that has passed; returns whether it did.
#[inline(never)]
pub fn draw(run: &mut Run, moment: &Moment) -> bool {
    let running = matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    if run.seed_slot == 0 || !running {
        return false;
    }
    let Some(hash) = slot_hashes::first_since(moment.slot_hashes(), run.seed_slot) else { return false };
    let seed = first_word(&[&run.current().seed.to_le_bytes(), &hash]);
    run.seed_slot = 0;
    run.next_seed = seed;
    if run.state == run_state::WARMUP {
        run.rounds[0].seed = seed;
        run.next_seed = of_purpose(seed, b"round");
    }
    true
}

/// Names an epoch that begins before its seed is drawn: no two attempts have the same name.
pub fn name(old: u64, moment: &Moment) -> u64 {
    first_word(&[&old.to_le_bytes(), &moment.entropy(), &moment.slot.to_le_bytes()])
}

/// What nobody knew before this moment.
pub fn salt(moment: &Moment) -> u64 {
    word(&moment.entropy())
}

/// Initial state of the shuffle for one purpose of a round.
pub fn of_purpose(seed: u64, purpose: &[u8]) -> u64 {
    first_word(&[&seed.to_le_bytes(), purpose])
}

fn first_word(parts: &[&[u8]]) -> u64 {
    word(&hashv(parts).to_bytes())
}

fn word(hash: &[u8; 32]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(word)
}
