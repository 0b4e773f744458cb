//! An epoch that begins from an older model than the run has: what its members bring back counts once they have trained.
//!
//! Until then whoever finished the last epoch keeps its claim, and the run goes back to what it was if nothing comes of the
//! epoch: some wallets that hold nothing must not make the others' work void by waiting together.

use super::{bitmap, checkpoints, committee, quorum};
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

/// A `round` made a step: if a quorum of its members delivered, of those of whom its witnesses are elected, the epoch
/// stands. Newcomers beside established members can no more make its work void than they can witness it.
#[inline(never)]
pub fn settle(run: &Run, members: &mut Members, round: &Round, attested: &Bitmap) {
    if members.before.kept == 0 {
        return;
    }
    let asked = bitmap::both(&round.roster, &committee::electors(run, members, round));
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
