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

/// A `round` made a step: the epoch stands if one of those asked `delivered`, and a quorum of them are `attested`. Where
/// newcomers are witnesses, a quorum of all members is enough for the latter, or one who is asked could void the epoch.
#[inline(never)]
pub fn settle(run: &Run, members: &mut Members, round: &Round, (attested, delivered): (&Bitmap, &Bitmap)) {
    if members.before.kept == 0 {
        return;
    }
    let asked = asked(run, members, round);
    let quorum = |set| bitmap::count(&bitmap::both(attested, set)) >= quorum::of(bitmap::count(set));
    let enough = quorum(&asked) || round.established == alone::NOTHING && quorum(&round.roster);
    if enough && bitmap::intersects(delivered, &asked) {
        members.before.kept = 0;
    }
}

/// The members of whom the witnesses are elected. Where newcomers are among these, the established members that did not
/// leave by themselves, also if newcomers had them dropped; all members, if there are none.
#[inline(never)]
fn asked(run: &Run, members: &Members, round: &Round) -> Bitmap {
    if round.established != alone::NOTHING {
        return bitmap::both(&round.roster, &committee::electors(run, members, round));
    }
    let mut stayed = members.judges;
    for index in bitmap::seats(&members.judges) {
        if !matches!(members.seats[index].state, member_state::HEALTHY | member_state::DROPPED) {
            bitmap::clear(&mut stayed, index as u8);
        }
    }
    if bitmap::is_empty(&stayed) {
        round.roster
    } else {
        stayed
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
