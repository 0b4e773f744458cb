//! A verifier states whether a trainer's result matches its own recomputation. Enough mismatches eject the trainer,
//! even if it has left meanwhile.

use super::Permissionless;
use crate::{
    errors::CoordinatorError,
    rules::{members, sequence, verdicts},
    state::*,
};
use anchor_lang::prelude::*;

/// Age, in rounds, of the oldest round whose results may be judged.
const OLDEST: usize = 2;

pub fn verify(ctx: &mut Context<Permissionless>, seat: u8, at: &RoundId, target: u8, mismatch: bool) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &Run = &accounts.run;
    require!(run.active(), CoordinatorError::WrongState);
    let back = (newest(run)..=OLDEST).find(|back| run.is_at(at, *back)).ok_or(CoordinatorError::StaleHeight)?;
    let ring = run.ring(back);
    members::check_healthy(&accounts.members, seat, accounts.user.address())?;
    let verdict = Verdict { verifier: seat, target, mismatch: mismatch as u8 };
    let votes = &mut accounts.witnesses.rounds[ring];
    let has_quorum = verdicts::cast(run, &accounts.members, votes, &verdicts::Ballot { ring, verdict })?;
    if has_quorum && members::eject(&mut accounts.run, &mut accounts.members, target) {
        sequence::bump(&mut accounts.run.members_seq);
    }
    accounts.finish()
}

/// Return the age, in rounds, of the newest round whose results may be judged. Only in a cooldown without overlap is
/// that the current round: with overlap, the last round is the drain round or one that nobody attests.
fn newest(run: &Run) -> usize {
    usize::from(run.state != run_state::COOLDOWN || run.config.overlap == 1)
}
