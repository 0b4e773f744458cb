//! Close the four accounts of a halted run and send their rent to `spill`. Memberships stay: they contain the members'
//! bonds, which members withdraw when they like.

use crate::{constants::*, errors::CoordinatorError, rules::bitmap, state::*};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct CloseRun {
    #[account(address = run.main_authority @ CoordinatorError::NotMainAuthority)]
    pub authority: Signer,
    #[account(mut, close = spill, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(mut, close = spill, address = run.address_of(MODEL_SEED, 1) @ ErrorCode::ConstraintSeeds)]
    pub model: Account<Model>,
    #[account(mut, close = spill, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    #[account(mut, close = spill, address = run.address_of(WITNESSES_SEED, 3) @ ErrorCode::ConstraintSeeds)]
    pub witnesses: Grown<Witnesses>,
    /// Receives the rent; may be the authority.
    #[account(mut, unsafe(dup))]
    pub spill: UncheckedAccount,
}

pub fn close_run(ctx: &mut Context<CloseRun>) -> Result<()> {
    let accounts = &ctx.accounts;
    require!(accounts.run.halted(), CoordinatorError::NotHalted);
    // Otherwise ejected members would get their forfeited bonds back.
    require!(bitmap::is_empty(&accounts.members.forfeited), CoordinatorError::BondsUnsettled);
    let closed =
        [accounts.run.address(), accounts.model.address(), accounts.members.address(), accounts.witnesses.address()];
    require!(!closed.contains(&accounts.spill.address()), CoordinatorError::SpillCloses);
    Ok(())
}
