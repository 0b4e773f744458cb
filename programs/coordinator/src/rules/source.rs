//! An epoch that begins from an older model than the run has: what its members bring back counts once they have trained.
//!
//! Until then whoever finished the last epoch keeps its claim, and the run goes back to what it was if nothing comes of the
//! epoch: some wallets that hold nothing must not make the others' work void by waiting together.

use super::{bitmap, checkpoints, quorum};
use crate::{constants::Bitmap, state::*};

/// Remembers what the run knows of its model, before an epoch begins from something older.
#[inline(never)]
pub fn keep(run: &Run, members: &mut Members, backlog: &Backlog) {
    members.before = Source {
        level_hashes: run.level_hashes,
        attested_data_index: run.attested_data_index,
        data_index: checkpoints::first_untrained(run, backlog),
        attested_step: run.attested_step,
        levels_attested: run.levels_attested,
        model_source: run.model_source,
        levels_lost: run.levels_lost,
        kept: 1,
    };
}

/// A `round` made a step: the epoch stands once a quorum of the round's established members delivered, or of all members
/// where none is in it. Newcomers beside established members neither make its work void nor replace what it is kept for.
#[inline(never)]
pub fn settle(members: &mut Members, round: &Round, attested: &Bitmap) {
    if members.before.kept == 0 {
        return;
    }
    let judges = bitmap::both(&round.roster, &members.judges);
    // one that left or was dropped must not make the work of all others void
    let asked = if bitmap::is_empty(&judges) { round.roster } else { judges };
    if bitmap::count(&bitmap::both(attested, &asked)) >= quorum::of(bitmap::count(&asked)) {
        members.before.kept = 0;
    }
}

/// The epoch is over, or was given up: what did not stand is undone. Returns whether that was so.
#[inline(never)]
pub fn restore(run: &mut Run, members: &mut Members, backlog: &mut Backlog) -> bool {
    if members.before.kept == 0 {
        return false;
    }
    members.before.kept = 0;
    let before = &members.before;
    run.level_hashes = before.level_hashes;
    run.attested_data_index = before.attested_data_index;
    run.attested_step = before.attested_step;
    run.levels_attested = before.levels_attested;
    run.model_source = before.model_source;
    run.levels_lost = before.levels_lost;
    if run.step != run.start_step {
        run.step = run.start_step;
        run.data_index = before.data_index;
        backlog.clear(run);
    }
    true
}
