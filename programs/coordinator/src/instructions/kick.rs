//! An authority takes a wallet out of the next epoch, bars it, or lifts the bar. The running epoch stays as it is.
//!
//! The wallet's membership stores the bar, so the bar needs no seat and outlasts one. The authority pays for a missing
//! membership, and is paid back when it lifts the bar.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{members, membership, membership::MembershipId, sequence},
    state::*,
};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct Kick {
    /// The run's main or join authority; may be the sponsor.
    #[account(mut, unsafe(dup))]
    pub authority: Signer,
    #[account(mut, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(mut, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    /// The wallet's membership.
    #[account(mut)]
    pub membership: UncheckedAccount,
    /// The wallet that paid for the membership, or the authority if none exists yet.
    #[account(mut, unsafe(dup))]
    pub sponsor: UncheckedAccount,
    pub system_program: Program<System>,
}

pub fn kick(ctx: &mut Context<Kick>, wallet: &Address, barred: bool) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let this_run = *accounts.run.address();
    let run: &mut Run = &mut accounts.run;
    let sender = accounts.authority.address();
    let allowed = *sender == run.main_authority || *sender == run.join_authority;
    require!(allowed, CoordinatorError::NotAllowedToKick);
    let seat = members::find(&accounts.members, wallet);
    let view = *accounts.membership.account();
    let id = MembershipId { run: &this_run, created: run.created, wallet };
    if !membership::exists(&view) {
        require!(barred, CoordinatorError::NotAMember);
        id.create(&view, accounts.authority.account())?;
    }
    let mut membership = id.open(&view)?;
    require!(barred || seat.is_some() || membership.barred == 1, CoordinatorError::NotAMember);
    membership.barred = u8::from(barred);
    if let Some(index) = seat {
        members::kick(run, &mut accounts.members, index, barred);
        sequence::bump(&mut run.members_seq);
    }
    if membership.enrolled == 0 && !barred {
        require!(*accounts.sponsor.address() == membership.sponsor, CoordinatorError::WrongSponsor);
        membership.close(*accounts.sponsor.account())?;
    }
    sequence::seal_members(run, &accounts.members)
}
