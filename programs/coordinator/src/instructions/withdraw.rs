//! A wallet leaves for good: its seat becomes free, its bond and rent come back, what it forfeited is destroyed.
//!
//! While the run lives the wallet must be in no epoch and want none. Of a run that was closed nothing is left to wait for:
//! whether its name was given to another run since makes no difference.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{membership, sequence},
    state::*,
};
use anchor_lang::{prelude::*, verify_program_address};

#[derive(Accounts)]
pub struct Withdraw {
    /// The wallet; or the sponsor of a bar that a closed run has left. May be the sponsor in any case.
    #[account(mut, unsafe(dup))]
    pub user: Signer,
    /// May be closed, or be another run of this name.
    #[account(mut, address = membership.run @ CoordinatorError::WrongMembership)]
    pub run: UncheckedAccount,
    #[account(mut)]
    pub members: UncheckedAccount,
    #[account(mut)]
    pub membership: Account<Membership>,
    /// Paid for the account; may be the user.
    #[account(mut, unsafe(dup), address = membership.sponsor @ CoordinatorError::WrongSponsor)]
    pub sponsor: UncheckedAccount,
    #[account(mut, address = membership::INCINERATOR @ CoordinatorError::WrongIncinerator)]
    pub incinerator: UncheckedAccount,
}

pub fn withdraw(ctx: &mut Context<Withdraw>) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let view = *accounts.membership.account();
    let membership: &mut Membership = &mut accounts.membership;
    membership::check_address(membership, view.address())?;
    let enrolled = membership.enrolled == 1;
    let heir = if enrolled { &membership.wallet } else { &membership.sponsor };
    require!(accounts.user.address() == heir, CoordinatorError::NotOwnMembership);
    let lives = give_up_seat(&accounts.run, &accounts.members, membership)?;
    require!(enrolled || !lives, CoordinatorError::Barred);
    membership::burn(membership, &view, accounts.incinerator.account())?;
    let bond = core::mem::take(&mut membership.bond);
    membership::pay(&view, accounts.user.account(), bond)?;
    membership.enrolled = 0;
    if lives && membership.barred == 1 {
        return Ok(()); // the bar outlasts its owner's stay, and the rent with it
    }
    accounts.membership.close(*accounts.sponsor.account())?;
    Ok(())
}

/// Frees the seat, if the run that this is a membership of still exists; returns whether it does.
#[inline(never)]
fn give_up_seat(run: &UncheckedAccount, members: &UncheckedAccount, membership: &mut Membership) -> Result<bool> {
    if !run.account().owned_by(&crate::ID) {
        return Ok(false);
    }
    // SAFETY: each of the two accounts is loaded once in this instruction.
    let mut run = unsafe { Account::<Run>::load_mut(*run.account())? };
    if run.created != membership.created {
        return Ok(false);
    }
    let bump = [run.bumps[2]];
    verify_program_address(&[MEMBERS_SEED, run.seed(), &bump], &crate::ID, members.address())?;
    // SAFETY: as above.
    let mut members = unsafe { Grown::<Members>::load_mut(*members.account())? };
    if membership::vacate(&mut run, &mut members, membership)? {
        sequence::bump(&mut run.members_seq)?;
        sequence::seal_members(&mut run, &members)?;
    }
    Ok(true)
}
