//! Pay what a run asks of a wallet before it may join: the rent of its membership, and the bond. Both are refundable.

use crate::{constants::*, errors::CoordinatorError, rules::membership, rules::membership::MembershipId, state::*};
use anchor_lang::prelude::*;
use pinocchio_system::instructions::Transfer;

#[derive(Accounts)]
pub struct Enroll {
    #[account(mut)]
    pub user: Signer,
    #[account(address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    /// Created by the first call. A later call pays the missing part of the bond.
    #[account(mut)]
    pub membership: UncheckedAccount,
    pub system_program: Program<System>,
}

/// Enroll the wallet if the bond is at most `max_bond` lamports: the owner may have raised the bond since the wallet
/// read it.
pub fn enroll(ctx: &mut Context<Enroll>, max_bond: u64) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let bond = accounts.run.config.join_bond;
    require!(bond <= max_bond, CoordinatorError::BondAboveLimit);
    let view = *accounts.membership.account();
    let id =
        MembershipId { run: accounts.run.address(), created: accounts.run.created, wallet: accounts.user.address() };
    if !membership::exists(&view) {
        id.create(&view, accounts.user.account())?;
    }
    let missing = {
        let mut membership = id.open(&view)?;
        require!(membership.barred == 0, CoordinatorError::Barred);
        membership.enrolled = 1;
        let missing = bond.saturating_sub(membership.bond);
        membership.bond = membership.bond.max(bond);
        missing
    };
    if missing > 0 {
        Transfer { from: accounts.user.account(), to: &view, lamports: missing }.invoke()?;
    }
    Ok(())
}
