//! What the run knows about the contents of its model's levels.

use crate::{constants::MAX_LEVELS, state::*};

/// Mask of all `levels` (at most 8).
pub fn all(levels: u8) -> u8 {
    ((1u16 << levels.min(MAX_LEVELS as u8)) - 1) as u8
}

/// The members load the durable checkpoint; its hashes, where known, are the attested ones.
#[inline(never)]
pub fn use_durable(run: &mut Run, model: &Model) {
    run.model_source = model_source::DURABLE;
    run.level_hashes = model.checkpoint_hashes;
    run.attested_step = model.checkpoint_step;
    run.levels_attested = 0;
    for (level, hash) in model.checkpoint_hashes.iter().enumerate() {
        if *hash != [0; 32] {
            run.levels_attested |= 1 << level;
        }
    }
}
