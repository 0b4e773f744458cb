//! Verifiers' votes against trainers.

use super::{assignment::Plan, bitmap, committee, quorum};
use crate::{constants::MAX_VERDICTS, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

/// Fewer verifiers convict nobody, whatever share of them they are.
const LEAST: u32 = 3;

/// Stores a verdict about a stored round; returns whether a quorum of its verifiers now finds a mismatch.
///
/// Each verifier has an equal part of the room, so that none can take it from the others; about one target it has one.
#[inline(never)]
pub fn cast(run: &Run, members: &Members, votes: &mut WitnessRound, (ring, verdict): (usize, Verdict)) -> Result<bool> {
    let round = &run.rounds[ring];
    let verifiers = committee::verifiers(round.clients, run.config.verification_percent);
    require!(committee::is_verifier(round, &run.began, verdict.verifier, verifiers), CoordinatorError::NotAVerifier);
    require!(trained(run, members, round, verdict.target), CoordinatorError::NotATrainer);
    let count = (votes.verdict_count as usize).min(MAX_VERDICTS);
    let about = |vote: &&Verdict| vote.target == verdict.target;
    let earlier = votes.verdicts[..count].iter().filter(about).any(|vote| vote.verifier == verdict.verifier);
    require!(!earlier, CoordinatorError::DuplicateVerdict);
    let given = votes.verdicts[..count].iter().filter(|vote| vote.verifier == verdict.verifier).count();
    let room = given < MAX_VERDICTS / verifiers.max(1) as usize && count < MAX_VERDICTS;
    require!(room, CoordinatorError::VerdictsFull);
    votes.verdicts[count] = verdict;
    votes.verdict_count = (count + 1) as u8;
    let mismatches = votes.verdicts[..=count].iter().filter(about).filter(|vote| vote.mismatch == 1).count();
    Ok(mismatches as u32 >= quorum::of(verifiers).max(LEAST))
}

fn trained(run: &Run, members: &Members, round: &Round, seat: u8) -> bool {
    let plan = Plan::new(round, &run.began, members, run.config.verification_percent);
    let of_round = bitmap::has(&round.roster, seat);
    let found = of_round && plan.shares().any(|share| share.seat == seat && share.len > 0);
    found
}
