//! What the run knows about the contents of its model's levels.

use super::bitmap;
use crate::{
    constants::{Bitmap, MAX_LEVELS},
    state::*,
};

/// Mask of all `levels` (at most 8).
pub fn all(levels: u8) -> u8 {
    ((1u16 << levels.min(MAX_LEVELS as u8)) - 1) as u8
}

/// Mask of the levels that members of `set` hold. A tier holds its own level and all higher ones.
#[inline(never)]
pub fn held_by(run: &Run, members: &Members, set: &Bitmap) -> u8 {
    let used = members.slots.iter().take_while(|slot| slot.used == 1).enumerate();
    let holders = used.filter(|(index, _)| bitmap::has(set, *index as u8));
    let smallest = holders.map(|(_, slot)| slot.tier).min().unwrap_or(MAX_LEVELS as u8);
    all(run.levels) & !all(smallest)
}

/// Mask of the levels of which the durable checkpoint is not the newest copy. What finishers trained and nobody attested
/// has no hash, as has a checkpoint that was never attested: the two are still not equal.
#[inline(never)]
pub fn beyond_durable(run: &Run, model: &Model, members: &Members) -> u8 {
    let trained = held_by(run, members, &run.finishers);
    let hashes = run.level_hashes.iter().zip(model.checkpoint_hashes.iter()).enumerate();
    let beyond = hashes.fold(0, |mask, (level, (newest, durable))| {
        let unknown = *newest == [0; 32] && trained >> level & 1 == 1;
        mask | u8::from(newest != durable || unknown) << level
    });
    beyond & all(run.levels)
}

/// Members take these levels from the durable checkpoint, and the others from each other.
pub fn go_back(run: &mut Run, model: &Model, levels: u8) {
    for level in (0..MAX_LEVELS).filter(|level| levels >> level & 1 == 1) {
        let durable = model.checkpoint_hashes[level];
        run.level_hashes[level] = durable;
        run.levels_attested &= !(1 << level);
        run.levels_attested |= u8::from(durable != [0; 32]) << level;
    }
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
