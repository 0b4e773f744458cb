//! A wallet ends its membership: it frees its seat, gets its bond and rent back, and its forfeited lamports are
//! destroyed.
//!
//! While the run exists, the wallet must not be in the running epoch or wait for the next. After the run was closed,
//! the wallet need not wait, even if another run has the same name.

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
    /// The wallet that paid for the account. May be the user.
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
    let entitled = if enrolled { &membership.wallet } else { &membership.sponsor };
    require!(accounts.user.address() == entitled, CoordinatorError::NotOwnMembership);
    let run_exists = give_up_seat(&accounts.run, &accounts.members, membership)?;
    require!(enrolled || !run_exists, CoordinatorError::Barred);
    membership::burn(membership, &view, accounts.incinerator.account())?;
    let bond = core::mem::take(&mut membership.bond);
    membership::pay(&view, accounts.user.account(), bond)?;
    membership.enrolled = 0;
    if run_exists && membership.barred == 1 {
        return Ok(()); // the account stays, because it stores the bar
    }
    accounts.membership.close(*accounts.sponsor.account())?;
    Ok(())
}

/// Free the wallet's seat if the run of the membership still exists. Return whether it does.
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
        sequence::bump(&mut run.members_seq);
        sequence::seal_members(&mut run, &members)?;
    }
    Ok(true)
}
