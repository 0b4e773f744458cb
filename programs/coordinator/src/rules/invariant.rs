//! Invariants that hold after every instruction that changes a run. An instruction that would break one fails.
//!
//! So a fault of the rules costs one transaction and not the run. Every build contains these checks, so they take
//! constant time. The tests check what needs a scan of all members or intervals, after every transaction.

use super::{bitmap, level_holders, levels, weights};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

/// Check the run's account alone.
#[inline(never)]
pub fn check(run: &Run) -> Result<()> {
    let ranges = run.state <= run_state::PAUSED && run.exit_reason <= exit_reason::NO_ATTESTATION;
    let flags = run.pending_pause | run.cold_start | run.model_source;
    let unknown_levels = run.levels_attested & !levels::all(run.levels);
    let head_in_ring = (run.head as usize) < STORED_ROUNDS;
    let sound =
        ranges && flags <= 1 && run.draining <= 2 && unknown_levels == 0 && head_in_ring && run.lost_sequences == 0;
    require!(sound, CoordinatorError::InvariantBroken);
    if matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        check_round(run)?;
    }
    if run.active() {
        // Steps only rise within an epoch, by at most one per round, and nothing of the future is attested.
        let steps_fit_rounds =
            run.start_step <= run.step && run.step <= run.start_step.saturating_add(run.current().height + 1);
        let within_total = run.step <= run.config.total_steps.saturating_add(1) && run.attested_step <= run.step;
        // A member that holds a level holds all higher ones.
        let levels = run.levels_established;
        let upwards = levels & !levels::all(run.levels) == 0 && levels::all(run.levels) & (levels << 1) & !levels == 0;
        require!(steps_fit_rounds && within_total && upwards, CoordinatorError::InvariantBroken);
    }
    Ok(())
}

/// Check that each vote comes from a different member of the round's roster, and that data is handed out in order.
fn check_round(run: &Run) -> Result<()> {
    let round = run.current();
    let mut voters = 0;
    let mut strangers = 0;
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

/// Check run, members and witnesses together.
#[inline(never)]
pub fn check_all(run: &Run, members: &Members, witnesses: &Witnesses) -> Result<()> {
    check(run)?;
    let backlog = &witnesses.backlog;
    let count = backlog.count as usize;
    let counts_fit = count <= BACKLOG && witnesses.cases.count <= MAX_CASES as u64;
    require!(counts_fit && (count == 0) == (run.backlog == 0), CoordinatorError::InvariantBroken);
    if let (Some(first), Some(last)) = (backlog.first(), backlog.intervals[..count].last()) {
        let end = last.start.saturating_add(u64::from(last.len));
        let handed_out = first.start <= last.start && end <= run.data_index && run.backlog <= run.data_index;
        require!(handed_out && first.len > 0 && last.len > 0, CoordinatorError::InvariantBroken);
    }
    check_members(run, members)
}

/// Check the run and its members.
#[inline(never)]
pub fn check_members(run: &Run, members: &Members) -> Result<()> {
    // Nobody enters a running epoch.
    let begun =
        bitmap::is_subset(&members.healthy, &run.next_roster) && bitmap::is_subset(&run.next_roster, &run.began);
    // A round counts for its members if it makes a step.
    let judged = !run.active() || members.judged == run.step.saturating_sub(run.start_step).min(weights::MAX_JUDGED);
    // The state before a provisional epoch is remembered only while that epoch runs.
    let remembered = members.before.kept == 0 || run.active() || run.state == run_state::WARMUP;
    // An ejected member returns only with another bond.
    let bonded = bitmap::is_empty(&bitmap::both(&members.forfeited, &members.healthy));
    // Members that judge or attest began the epoch, and ejected members do not stay established.
    let voters_began = bitmap::is_subset(&bitmap::either(&members.judges, &members.proven), &run.began);
    let ejected_lose_status =
        run.state == run_state::COOLDOWN || !bitmap::intersects(&members.forfeited, &members.established);
    // No two epochs that made a step have the same number.
    let numbered = members.epoch < run.epoch || members.epoch == run.epoch && (members.judged == 0 || run.active());
    require!(numbered, CoordinatorError::InvariantBroken);
    let members_sound = begun && judged && remembered && bonded && voters_began && ejected_lose_status;
    require!(members_sound, CoordinatorError::InvariantBroken);
    if run.active() || run.state == run_state::WARMUP {
        check_level_votes(run, members)
    } else {
        require!(bitmap::is_empty(&members.healthy), CoordinatorError::InvariantBroken);
        Ok(())
    }
}

/// Check which members judge and attest the levels of the running epoch, and their scores.
#[inline(never)]
fn check_level_votes(run: &Run, members: &Members) -> Result<()> {
    let warming = run.state == run_state::WARMUP;
    let cooling = run.state == run_state::COOLDOWN;
    // A round moves a score by one. Newcomers next to established holders begin at 63, all others at 64.
    let counted = members.judged;
    let lowest = level_holders::BELOW_BALANCED.saturating_sub(counted);
    let limit = level_holders::BALANCED.saturating_add(counted) + 1;
    for index in 0..bitmap::WORDS {
        let word = |set: &Bitmap| bitmap::word(set, index);
        let healthy = word(&members.healthy);
        let judges = word(&members.judges);
        let established = word(&members.established);
        // Nobody becomes established during an epoch, and only members that left it lose that status.
        let fixed = established & word(&run.began) & !judges == 0 && judges & healthy & !established == 0;
        // Levels have established judges if and only if some were healthy when the rounds began.
        let judged_by_established = warming || run.levels_established != 0 || judges & healthy == 0;
        // Scores are within reach of the counted rounds, and members that attest levels have shown them.
        let in_reach = warming || level_holders::scores_between(members, index, healthy, lowest, limit);
        let unproven_attesters =
            word(&members.proven) & healthy & if cooling { !word(level_holders::in_half(members)) } else { 0 };
        let early = warming && word(&members.proven) != 0;
        let votes_sound = fixed && judged_by_established && in_reach && unproven_attesters == 0 && !early;
        require!(votes_sound, CoordinatorError::InvariantBroken);
    }
    let has_judges = warming || run.levels_established == 0 || !bitmap::is_empty(&members.judges);
    require!(has_judges, CoordinatorError::InvariantBroken);
    Ok(())
}
