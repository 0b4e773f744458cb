//! Draw the seeds of rounds and of the shuffles within a round.
//!
//! Nobody chooses a seed. An instruction fixes the roster together with a future slot, and the first instruction after
//! that slot draws the seed from its hash. The next round's seed is drawn while a round runs.

use super::{slot_hashes, Moment};
use crate::state::{run_state, Run};
use solana_sha256_hasher::hashv;

/// Number of slots that one validator leads in a row.
const LEADER_SLOTS: u64 = 4;

/// Fix the slot from whose hash the next seed is drawn: the first slot of the next leader. The present leader decides
/// what this instruction fixes, and so seldom makes that hash too.
pub fn fix(run: &mut Run, moment: &Moment) {
    run.seed_slot = (moment.slot / LEADER_SLOTS).wrapping_add(1).wrapping_mul(LEADER_SLOTS);
}

/// Draw the next seed if its slot has passed. Return whether it was drawn.
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

/// Return a seed that names an epoch before its own seed is drawn. No two attempts at an epoch have the same name.
pub fn name(old: u64, moment: &Moment) -> u64 {
    first_word(&[&old.to_le_bytes(), &moment.entropy(), &moment.slot.to_le_bytes()])
}

/// Return a number that nobody knew before this moment.
pub fn salt(moment: &Moment) -> u64 {
    word(&moment.entropy())
}

/// Return the initial state of the shuffle for one purpose of a round.
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
