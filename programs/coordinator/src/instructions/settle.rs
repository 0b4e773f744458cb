//! Copy the record of a member's seat into its membership, and destroy its bond if it was ejected. Any wallet may do
//! this.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{members, membership, sequence},
    state::*,
};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct Settle {
    #[account(mut, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(mut, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    #[account(mut)]
    pub membership: Account<Membership>,
    #[account(mut, address = membership::INCINERATOR @ CoordinatorError::WrongIncinerator)]
    pub incinerator: UncheckedAccount,
}

pub fn settle(ctx: &mut Context<Settle>) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let this_run = *accounts.run.address();
    let run: &mut Run = &mut accounts.run;
    let view = *accounts.membership.account();
    let membership: &mut Membership = &mut accounts.membership;
    membership::check_address(membership, view.address())?;
    let same = membership.run == this_run && membership.created == run.created;
    require!(same, CoordinatorError::WrongMembership);
    let index = members::find(&accounts.members, &membership.wallet).ok_or(CoordinatorError::NotAMember)?;
    let marked = membership::settle(run, &mut accounts.members, index, membership);
    membership::burn(membership, &view, accounts.incinerator.account())?;
    if marked {
        sequence::bump(&mut run.members_seq);
        sequence::seal_members(run, &accounts.members)?;
    }
    Ok(())
}
