//! Count verifiers' verdicts about trainers.

use super::{assignment::Plan, bitmap, committee, quorum};
use crate::{constants::MAX_VERDICTS, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

/// Minimum number of mismatches that eject a trainer.
const MIN_MISMATCHES: u32 = 3;

/// A verdict about a member of the round at ring index `ring`.
pub struct Ballot {
    pub ring: usize,
    pub verdict: Verdict,
}

/// Store a verdict. Return whether a quorum of the round's verifiers now finds a mismatch.
///
/// A verifier gives one verdict per target. All verifiers have equal room, so that none can take the others'.
#[inline(never)]
pub fn cast(run: &Run, members: &Members, votes: &mut WitnessRound, ballot: &Ballot) -> Result<bool> {
    let Ballot { ring, verdict } = *ballot;
    let round = &run.rounds[ring];
    let verifiers = committee::verifiers(round.clients, run.config.verification_percent);
    require!(committee::is_verifier(round, &run.began, verdict.verifier, verifiers), CoordinatorError::NotAVerifier);
    require!(trained(run, members, round, verdict.target), CoordinatorError::NotATrainer);
    let count = (votes.verdict_count as usize).min(MAX_VERDICTS);
    let same_target = |vote: &&Verdict| vote.target == verdict.target;
    let is_repeated = votes.verdicts[..count].iter().filter(same_target).any(|vote| vote.verifier == verdict.verifier);
    require!(!is_repeated, CoordinatorError::DuplicateVerdict);
    let own_verdicts = votes.verdicts[..count].iter().filter(|vote| vote.verifier == verdict.verifier).count();
    let has_room = own_verdicts < MAX_VERDICTS / verifiers.max(1) as usize && count < MAX_VERDICTS;
    require!(has_room, CoordinatorError::VerdictsFull);
    votes.verdicts[count] = verdict;
    votes.verdict_count = (count + 1) as u8;
    let mismatches = votes.verdicts[..=count].iter().filter(same_target).filter(|vote| vote.mismatch == 1).count();
    Ok(mismatches as u32 >= quorum::of(verifiers).max(MIN_MISMATCHES))
}

/// Return whether a member of the round had a share of its data.
fn trained(run: &Run, members: &Members, round: &Round, seat: u8) -> bool {
    let plan = Plan::new(round, &run.began, members, run.config.verification_percent);
    let in_round = bitmap::has(&round.roster, seat);
    in_round && plan.shares().any(|share| share.seat == seat && share.len > 0)
}
