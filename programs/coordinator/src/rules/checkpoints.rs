//! The checkpoints that a run can go back to: the present one and a few before it.

use super::{bitmap, committee, levels};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use bytemuck::Zeroable;

/// Of holders that have no place in the order.
const LAST_TURN: u8 = u8::MAX;

/// The present checkpoint in the form of the earlier ones.
fn present(model: &Model) -> Recorded {
    Recorded {
        checkpoint: model.checkpoint,
        hashes: model.checkpoint_hashes,
        data_index: model.checkpoint_data_index,
        step: model.checkpoint_step,
        pad: 0,
    }
}

fn take(model: &mut Model, recorded: &Recorded) {
    model.checkpoint = recorded.checkpoint;
    model.checkpoint_hashes = recorded.hashes;
    model.checkpoint_data_index = recorded.data_index;
    model.checkpoint_step = recorded.step;
}

/// Names a new checkpoint; the one before it becomes the first of the earlier ones, and the oldest of these goes. Of one
/// step only two are kept: the first to name a bad place pushes no other step out.
#[inline(never)]
pub fn replace(model: &mut Model, by: &Recorded) {
    if model.checkpoint.kind != checkpoint_kind::NONE {
        let again = by.step == model.checkpoint_step && by.step == model.earlier[0].step;
        if !again {
            model.earlier.copy_within(..EARLIER - 1, 1);
        }
        model.earlier[0] = present(model);
    }
    take(model, by);
}

/// What was recorded of another schema is of no use.
pub fn forget(model: &mut Model) {
    model.earlier = [Recorded::zeroed(); EARLIER];
}

/// When it is a holder's turn to name a checkpoint: its place in the order of the last round, while that is there. Who
/// comes earlier may replace what another one has named of the same step; so nobody gains by being fast.
#[inline(never)]
pub fn turn(run: &Run, seat: u8) -> u8 {
    let round = run.current();
    let over = !matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    if !over || !bitmap::has(&round.roster, seat) {
        return LAST_TURN;
    }
    let rank = bitmap::rank(&run.began, seat) as u8;
    let order = committee::order(round, &run.began, committee::CHECKPOINT);
    order.ranks().iter().position(|one| *one == rank).map_or(LAST_TURN, |place| place as u8)
}

/// Takes the run back to the checkpoint `place` (0 the present one, then the earlier ones), which is the one of `step`.
/// The present one takes its place, so that a run can also be taken forward again.
#[inline(never)]
pub fn rewind(run: &mut Run, model: &mut Model, backlog: &mut Backlog, (place, step): &(u8, u32)) -> Result<()> {
    let mut chosen = present(model);
    if let Some(index) = usize::from(*place).checked_sub(1) {
        let earlier = model.earlier.get_mut(index).ok_or(CoordinatorError::NoSuchCheckpoint)?;
        core::mem::swap(earlier, &mut chosen);
    }
    let found = chosen.checkpoint.kind != checkpoint_kind::NONE && chosen.step == *step;
    require!(found, CoordinatorError::NoSuchCheckpoint);
    take(model, &chosen);
    run.step = chosen.step.max(1);
    run.data_index = chosen.data_index;
    backlog.clear(run);
    run.finishers = [0; 32];
    run.cold_start = 1;
    run.epoch_started_at = 0; // the owner chose this model: newcomers need not wait a day
    levels::use_durable(run, model);
    Ok(())
}

/// The first sequence that the model was not trained on: what waits to be done again is not in it.
pub fn first_untrained(run: &Run, backlog: &Backlog) -> u64 {
    backlog.first().map_or(run.data_index, |interval| interval.start.min(run.data_index))
}
