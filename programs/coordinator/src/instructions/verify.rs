//! A verifier states whether a trainer's result matches its own recomputation; enough mismatches eject the trainer, also
//! if it has left meanwhile.

use super::Permissionless;
use crate::{
    errors::CoordinatorError,
    rules::{members, sequence, verdicts},
    state::*,
};
use anchor_lang::prelude::*;

/// Rounds before the current one: older results may not be judged any more.
const OLDEST: usize = 2;

pub fn verify(ctx: &mut Context<Permissionless>, (seat, at): (u8, &Place), target: u8, mismatch: bool) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &Run = &accounts.run;
    require!(run.active(), CoordinatorError::WrongState);
    let back = (newest(run)..=OLDEST).find(|back| run.is_at(at, *back)).ok_or(CoordinatorError::StaleHeight)?;
    let ring = run.ring(back);
    members::check_healthy(&accounts.members, seat, accounts.user.address())?;
    let verdict = Verdict { verifier: seat, target, mismatch: mismatch as u8 };
    let votes = &mut accounts.witnesses.rounds[ring];
    let ejected = verdicts::cast(run, &accounts.members, votes, (ring, verdict))?;
    if ejected && members::eject(&mut accounts.run, &mut accounts.members, target) {
        sequence::bump(&mut accounts.run.members_seq)?;
    }
    accounts.finish()
}

/// Rounds before the current one whose results are due first. Those of the current round are in cooldown only: without
/// overlap it has data, and with overlap it is the drain round or one that nobody attests.
fn newest(run: &Run) -> usize {
    usize::from(run.state != run_state::COOLDOWN || run.config.overlap == 1)
}
