//! Provisional epochs: if one does not stand, the run goes back to what it knew of its model before.
//!
//! Newcomers must not replace the model while the members that built it are absent or voted out. So an epoch that
//! starts from an older model, or with few established members, stands only if established members take part in it.

use super::{bitmap, checkpoints, committee, levels, members};
use crate::{constants::Bitmap, state::*};

/// Return whether newcomers could decide about the model in the epoch that begins, although the run has enough
/// established members to decide alone. Newcomers vote in the rounds if too few established members take part.
pub fn is_at_risk(members: &Members) -> bool {
    bitmap::count(&members.established) >= committee::MIN_ESTABLISHED && !bitmap::is_empty(&members.judges)
}

/// Remember what the run knows of its model, before a provisional epoch changes it.
#[inline(never)]
pub fn remember(run: &Run, members: &mut Members, backlog: &Backlog) {
    members.before = ModelBefore {
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

/// Return the judges that did not leave the rounds by their own decision.
///
/// Newcomers may have had a judge dropped, or outvoted it: a client that cannot fetch the attested results joins again
/// without a replica. Leaving in the warm-up does not count, because clients that find no source of the model leave by
/// themselves.
fn not_withdrawn(members: &Members) -> Bitmap {
    let mut judges = members.judges;
    for index in bitmap::seats(&members.judges) {
        let remains = matches!(
            members.seats[index].state,
            member_state::HEALTHY | member_state::DROPPED | member_state::RESTARTED | member_state::LEFT_EARLY
        );
        if !remains {
            bitmap::clear(&mut judges, index as u8);
        }
    }
    judges
}

/// Decide, when the rounds are over, whether the epoch stands, and forget the remembered state if it does.
///
/// If established members began the epoch, one of them must have delivered and still be there. If all of them left by
/// `leave_run`, one of them and a member that stayed must have delivered: that member can attest what they made. An
/// epoch without a step does not stand if it began from an older model.
#[inline(never)]
pub fn confirm(run: &Run, members: &mut Members) {
    let delivering_judges = bitmap::both(&members.judges, &members.proven);
    let stands = if run.step == run.start_step {
        !is_provisional(run, members)
    } else if bitmap::is_empty(&delivering_judges) {
        bitmap::is_empty(&members.judges)
    } else {
        let attesters = if bitmap::is_empty(&not_withdrawn(members)) { members.proven } else { delivering_judges };
        bitmap::intersects(&attesters, &members.healthy)
    };
    if stands {
        members.before.kept = 0;
    }
}

/// Return whether what the run knows of its model comes from a provisional epoch.
pub fn is_provisional(run: &Run, members: &Members) -> bool {
    let before = &members.before;
    let unchanged = run.level_hashes == before.level_hashes && run.attested_step == before.attested_step;
    before.kept == 1 && !unchanged
}

/// Return whether the epoch may begin without other established members.
///
/// True if at least `MIN_ESTABLISHED` of the `pending` members are established, or if an established one was not in the
/// last undone epoch. Otherwise a member that never delivers could void epoch after epoch.
pub fn ends_wait(run: &Run, members: &Members, pending: &Bitmap) -> bool {
    let waiting = bitmap::both(&members.established, pending);
    bitmap::count(&waiting) >= committee::MIN_ESTABLISHED || !bitmap::is_subset(&waiting, &undone(run, members))
}

/// Return the established members of the last epoch if its steps were undone, else none.
fn undone(run: &Run, members: &Members) -> Bitmap {
    // Between epochs, `judged` and `judges` are those of the last epoch.
    if run.epoch_started_at == 0 || members.judged == 0 || run.step != run.start_step {
        return [0; 32];
    }
    bitmap::both(&members.judges, &members.established)
}

/// Make newcomers of the waiting members of an undone epoch, if the next epoch begins although `ends_wait` is false.
/// The other established members had a day to come.
///
/// While the run has levels that are in no durable checkpoint, nobody is demoted: newcomers may have outvoted an honest
/// member, and could then replace these levels. Each epoch of theirs is undone until the owner bars wallets or
/// rewinds the run.
pub fn demote(run: &Run, model: &Model, members: &mut Members, pending: &Bitmap) {
    if levels::unsaved(run, model) == 0 && !ends_wait(run, members, pending) {
        let demoted = bitmap::both(&undone(run, members), pending);
        members.established = bitmap::without(&members.established, &demoted);
    }
}

/// Undo the epoch if it is still provisional when it is over or abandoned. Return whether it was undone.
#[inline(never)]
pub fn restore(run: &mut Run, members: &mut Members, backlog: &mut Backlog) -> bool {
    if members.before.kept == 0 {
        return false;
    }
    members.before.kept = 0;
    members.proven = [0; 32]; // a delivery in an undone epoch gives no right to name checkpoints
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
    members::remove_unwanted_finishers(run, members);
    true
}
