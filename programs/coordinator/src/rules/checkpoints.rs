//! The checkpoints that a run can go back to: the current one and the `EARLIER` ones before it.

use super::{bitmap, committee, levels};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use bytemuck::Zeroable;

/// The turn of a holder that has no position in the order.
const LAST_TURN: u8 = u8::MAX;

/// Return the current checkpoint as a record like the earlier ones.
fn current(model: &Model) -> Recorded {
    Recorded {
        checkpoint: model.checkpoint,
        hashes: model.checkpoint_hashes,
        data_index: model.checkpoint_data_index,
        step: model.checkpoint_step,
        pad: 0,
    }
}

/// Make `recorded` the current checkpoint.
fn set_current(model: &mut Model, recorded: &Recorded) {
    model.checkpoint = recorded.checkpoint;
    model.checkpoint_hashes = recorded.hashes;
    model.checkpoint_data_index = recorded.data_index;
    model.checkpoint_step = recorded.step;
}

/// Make `new` the current checkpoint. The previous one becomes the first of the earlier ones, and the oldest is
/// dropped.
///
/// At most two records have the same step, so that members that name bad locations for one step push no other step out.
#[inline(never)]
pub fn replace(model: &mut Model, new: &Recorded) {
    if model.checkpoint.kind != checkpoint_kind::NONE {
        let is_third = new.step == model.checkpoint_step && new.step == model.earlier[0].step;
        if !is_third {
            model.earlier.copy_within(..EARLIER - 1, 1);
        }
        model.earlier[0] = current(model);
    }
    set_current(model, new);
}

/// Forget the earlier checkpoints, which are useless under another schema.
pub fn forget(model: &mut Model) {
    model.earlier = [Recorded::zeroed(); EARLIER];
}

/// Return a holder's turn to name a checkpoint: its position in an order of the last round, while the run still stores
/// it. An earlier turn may replace the checkpoint of a later one of the same step, so that nobody gains by being fast.
#[inline(never)]
pub fn turn(run: &Run, seat: u8) -> u8 {
    let round = run.current();
    let over = !matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    if !over || !bitmap::has(&round.roster, seat) {
        return LAST_TURN;
    }
    let rank = bitmap::rank(&run.began, seat) as u8;
    let order = committee::order(round, &run.began, committee::CHECKPOINT);
    order.ranks().iter().position(|one| *one == rank).map_or(LAST_TURN, |position| position as u8)
}

/// Make the checkpoint at `index` (0 = the current one, 1 to `EARLIER` = the earlier ones) the current one. It must be
/// of `step`. The previous current one takes its place, so that the run can also go forward again.
#[inline(never)]
pub fn choose(model: &mut Model, index: u8, step: u32) -> Result<()> {
    let mut chosen = current(model);
    if let Some(position) = usize::from(index).checked_sub(1) {
        let earlier = model.earlier.get_mut(position).ok_or(CoordinatorError::NoSuchCheckpoint)?;
        core::mem::swap(earlier, &mut chosen);
    }
    let matches = chosen.checkpoint.kind != checkpoint_kind::NONE && chosen.step == step;
    require!(matches, CoordinatorError::NoSuchCheckpoint);
    set_current(model, &chosen);
    model.checkpoint_turn = 0; // the owner's: no member may replace it
    Ok(())
}

/// Take the run back to its current checkpoint.
#[inline(never)]
pub fn rewind(run: &mut Run, model: &Model, backlog: &mut Backlog) {
    run.step = model.checkpoint_step.max(1);
    run.data_index = model.checkpoint_data_index;
    backlog.clear(run);
    run.finishers = [0; 32];
    run.cold_start = 1;
    run.epoch_started_at = 0; // the owner chose this model: newcomers need not wait a day
    levels::use_durable(run, model);
}

/// Return the first sequence that the model was not trained on. Sequences in the backlog count as untrained.
pub fn first_untrained(run: &Run, backlog: &Backlog) -> u64 {
    backlog.first().map_or(run.data_index, |interval| interval.start.min(run.data_index))
}
