//! What holds after every instruction that changes a run, for any request of any wallet.
//!
//! An instruction that would break one of these is refused as a whole, so that a fault of the rules costs one transaction
//! and not the run. It is part of every build, and so only what takes constant time is asked; what would take a look at
//! all members or intervals is checked by the tests, whose model of the rules sees every account after every transaction.

use super::{bitmap, level_holders, levels, weights};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

/// Of the run's account alone.
#[inline(never)]
pub fn check(run: &Run) -> Result<()> {
    let ranges = run.state <= run_state::PAUSED && run.exit_reason <= exit_reason::NO_ATTESTATION;
    let flags = run.pending_pause | run.cold_start | run.model_source | run.draining;
    let known = run.levels_attested & !levels::all(run.levels);
    let sound = ranges && flags <= 1 && known == 0 && (run.head as usize) < STORED_ROUNDS && run.lost_sequences == 0;
    require!(sound, CoordinatorError::InvariantBroken);
    if matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        check_round(run)?;
    }
    if run.active() {
        // steps only rise in an epoch, one with each round that was judged, and what is attested is none of the future
        let made = run.start_step <= run.step && run.step <= run.start_step.saturating_add(run.current().height + 1);
        let bounded = run.step <= run.config.total_steps.saturating_add(1) && run.attested_step <= run.step;
        // a member that holds a level holds all that come after it
        let levels = run.levels_established;
        let whole = levels & !levels::all(run.levels) == 0 && levels::all(run.levels) & (levels << 1) & !levels == 0;
        require!(made && bounded && whole, CoordinatorError::InvariantBroken);
    }
    Ok(())
}

/// Each vote is one of a different elected member of the round's roster, and the data is handed out in order.
fn check_round(run: &Run) -> Result<()> {
    let round = run.current();
    let (mut voters, mut strangers) = (0, 0);
    for index in 0..bitmap::WORDS {
        let word = bitmap::word(&round.attested, index);
        if word != 0 {
            voters += word.count_ones();
            strangers |= word & !bitmap::word(&round.roster, index);
        }
    }
    let votes = u32::from(round.attestations) == voters && strangers == 0;
    let elected = round.attestations <= round.elected && u16::from(round.elected) <= round.clients;
    let next = round.data_index.wrapping_add(u64::from(round.fresh()));
    let data = next == run.data_index || run.state == run_state::WARMUP;
    require!(votes && elected && data, CoordinatorError::InvariantBroken);
    Ok(())
}

/// Of the accounts together.
#[inline(never)]
pub fn check_all(run: &Run, members: &Members, witnesses: &Witnesses) -> Result<()> {
    check(run)?;
    let backlog = &witnesses.backlog;
    let count = backlog.count as usize;
    require!(count <= BACKLOG && (count == 0) == (run.backlog == 0), CoordinatorError::InvariantBroken);
    if let (Some(first), Some(last)) = (backlog.first(), backlog.intervals[..count].last()) {
        let end = last.start.saturating_add(u64::from(last.len));
        let handed_out = first.start <= last.start && end <= run.data_index && run.backlog <= run.data_index;
        require!(handed_out && first.len > 0 && last.len > 0, CoordinatorError::InvariantBroken);
    }
    check_members(run, members)
}

/// Of the run and its members.
#[inline(never)]
pub fn check_members(run: &Run, members: &Members) -> Result<()> {
    // nobody comes into a running epoch
    let begun =
        bitmap::is_subset(&members.healthy, &run.next_roster) && bitmap::is_subset(&run.next_roster, &run.began);
    // a round counts for its members if it makes a step
    let judged = !run.active() || members.judged == run.step.saturating_sub(run.start_step).min(weights::MOST);
    // what an epoch may have to give back is kept while it runs, and not longer
    let kept = members.before.kept == 0 || run.active() || run.state == run_state::WARMUP;
    // an ejected member comes back only with another bond
    let paid = bitmap::is_empty(&bitmap::both(&members.forfeited, &members.healthy));
    // who has a word about the epoch was in it from its beginning, and the ejected have none in the next
    let spoke = bitmap::is_subset(&bitmap::either(&members.judges, &members.proven), &run.began);
    let silenced = run.state == run_state::COOLDOWN || !bitmap::intersects(&members.forfeited, &members.established);
    // no epoch has the number of another one that was gone through
    let numbered = members.epoch < run.epoch || members.epoch == run.epoch && (members.judged == 0 || run.active());
    require!(numbered, CoordinatorError::InvariantBroken);
    require!(begun && judged && kept && paid && spoke && silenced, CoordinatorError::InvariantBroken);
    if run.active() || run.state == run_state::WARMUP {
        check_words(run, members)
    } else {
        require!(bitmap::is_empty(&members.healthy), CoordinatorError::InvariantBroken);
        Ok(())
    }
}

/// Who has a word about the levels of the running epoch, and what is counted of that.
#[inline(never)]
fn check_words(run: &Run, members: &Members) -> Result<()> {
    let (warming, cooling) = (run.state == run_state::WARMUP, run.state == run_state::COOLDOWN);
    // a round moves a count by one; those below begin at 63, and all others at 64
    let counted = members.judged;
    let (lowest, above) =
        (level_holders::BELOW_BALANCED.saturating_sub(counted), level_holders::BALANCED.saturating_add(counted) + 1);
    for index in 0..bitmap::WORDS {
        let word = |set: &Bitmap| bitmap::word(set, index);
        let (healthy, judges, established) =
            (word(&members.healthy), word(&members.judges), word(&members.established));
        // nobody comes to be established in an epoch, and of those who were only such as are no longer in it lose it
        let fixed = established & word(&run.began) & !judges == 0 && judges & healthy & !established == 0;
        // levels are judged by their established holders if and only if some began the rounds
        let alone = warming || run.levels_established != 0 || judges & healthy == 0;
        // what was counted is within reach, and members that speak for levels have shown them
        let reached = warming || level_holders::between(members, (index, healthy), lowest, above);
        let speaks = word(&members.proven) & healthy & if cooling { !word(level_holders::in_half(members)) } else { 0 };
        let early = warming && word(&members.proven) != 0;
        require!(fixed && alone && reached && speaks == 0 && !early, CoordinatorError::InvariantBroken);
    }
    let someone = warming || run.levels_established == 0 || !bitmap::is_empty(&members.judges);
    require!(someone, CoordinatorError::InvariantBroken);
    Ok(())
}
