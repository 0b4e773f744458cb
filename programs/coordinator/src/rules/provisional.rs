//! Epochs that may be undone: the run then goes back to what it knew of its model before.
//!
//! Wallets that hold nothing must not replace the model while the members that built it are absent or voted out. So an epoch
//! from an older model, or with few of a run's established members, stands only if these take part in it.

use super::{bitmap, checkpoints, committee, members};
use crate::{constants::Bitmap, state::*};

/// Return whether newcomers could decide what the epoch that begins makes of the model, although the run has enough
/// established members to decide alone. Newcomers vote in the rounds if too few of these are in it.
pub fn is_at_risk(members: &Members) -> bool {
    bitmap::count(&members.established) >= committee::MIN_ESTABLISHED && !bitmap::is_empty(&members.judges)
}

/// Remember what the run knows of its model, before an epoch that may be undone changes it.
#[inline(never)]
pub fn remember(run: &Run, members: &mut Members, backlog: &Backlog) {
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

/// Return the judges that did not leave by `leave_run`. The others may be the victims of newcomers, which had them dropped or
/// outvoted them: a client that cannot get the results that were attested joins again without a replica. Leaving in the
/// warm-up does not count either: clients that find no source of the model do so by themselves.
fn remaining(members: &Members) -> Bitmap {
    let mut remaining = members.judges;
    for index in bitmap::seats(&members.judges) {
        let remains = matches!(
            members.seats[index].state,
            member_state::HEALTHY | member_state::DROPPED | member_state::RESTARTED | member_state::LEFT_EARLY
        );
        if !remains {
            bitmap::clear(&mut remaining, index as u8);
        }
    }
    remaining
}

/// Settle, when the rounds are over, whether the epoch stands. With established members in it, one of them must have
/// delivered and still be there. If all of them left by `leave_run`, one must have delivered, and a member that stayed,
/// which can then attest what they made. An epoch without a step does not stand if it began from an older model.
#[inline(never)]
pub fn confirm(run: &Run, members: &mut Members) {
    let spoke = bitmap::both(&members.judges, &members.proven);
    let stands = if run.step == run.start_step {
        !is_provisional(run, members)
    } else if bitmap::is_empty(&spoke) {
        bitmap::is_empty(&members.judges)
    } else {
        let attests = if bitmap::is_empty(&remaining(members)) { members.proven } else { spoke };
        bitmap::intersects(&attests, &members.healthy)
    };
    if stands {
        members.before.kept = 0;
    }
}

/// Return whether what the run knows of its model comes from an epoch that may be undone.
pub fn is_provisional(run: &Run, members: &Members) -> bool {
    let before = &members.before;
    let same = run.level_hashes == before.level_hashes && run.attested_step == before.attested_step;
    before.kept == 1 && !same
}

/// Return whether an epoch of the members that wait need not wait for other established members. One that never delivers
/// must not void epoch after epoch: after an undone epoch it takes one that was not in it, or enough to decide alone.
pub fn ends_wait(run: &Run, members: &Members, pending: &Bitmap) -> bool {
    let waiting = bitmap::both(&members.established, pending);
    bitmap::count(&waiting) >= committee::MIN_ESTABLISHED || !bitmap::is_subset(&waiting, &undone(run, members))
}

/// Return the established members of the last epoch if it made steps that were undone.
fn undone(run: &Run, members: &Members) -> Bitmap {
    // between epochs, `judged` and `judges` are those of the last one
    if run.epoch_started_at == 0 || members.judged == 0 || run.step != run.start_step {
        return [0; 32];
    }
    bitmap::both(&members.judges, &members.established)
}

/// An epoch begins although nobody `ends_wait`: established members that wait, all of an undone epoch, had a day for others
/// to come. They begin as newcomers.
pub fn demote(run: &Run, members: &mut Members, pending: &Bitmap) {
    if !ends_wait(run, members, pending) {
        let demoted = bitmap::both(&undone(run, members), pending);
        members.established = bitmap::without(&members.established, &demoted);
    }
}

/// Undo the epoch if it does not stand: it is over, or was given up. Return whether it was undone.
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
    members::forget_unwanted(run, members);
    true
}
