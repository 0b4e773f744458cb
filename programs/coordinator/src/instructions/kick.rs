//! An authority takes a wallet out of the next epoch, bars it, or lifts that. The running epoch stays as it is.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{members, now, sequence},
    state::*,
};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct Kick {
    /// The run's main or join authority.
    pub authority: Signer,
    #[account(mut, seeds = [RUN_SEED, run.seed()], bump = run.bumps[0])]
    pub run: Account<Run>,
    #[account(mut, seeds = [MEMBERS_SEED, run.seed()], bump = run.bumps[2])]
    pub members: Grown<Members>,
}

pub fn kick(ctx: &mut Context<Kick>, wallet: &Address, barred: bool) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    let sender = accounts.authority.address();
    let allowed = *sender == run.main_authority || *sender == run.join_authority;
    require!(allowed, CoordinatorError::NotAllowedToKick);
    members::kick(run, &mut accounts.members, &(*wallet, barred), now()?)?;
    sequence::bump(&mut run.members_seq)?;
    sequence::seal_run(run)
}
