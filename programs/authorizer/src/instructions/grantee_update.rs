//! The grantee names the delegates: wallets that may act in its place.

use crate::errors::AuthorizerError;
use anchor_lang::{prelude::*, realloc_account};
use authorization::{Authorization, AUTHORIZATION_SEED, MAX_DELEGATES};

#[derive(Accounts)]
pub struct GranteeUpdate {
    /// May be the other signer: both only sign, and only this one pays.
    #[account(mut, unsafe(dup))]
    pub payer: Signer,
    #[account(address = authorization.grantee @ AuthorizerError::NotGrantee)]
    pub grantee: Signer,
    #[account(
        mut,
        seeds = [
            AUTHORIZATION_SEED,
            authorization.grantor.as_ref(),
            authorization.grantee.as_ref(),
            authorization.scope.as_slice()
        ],
        bump = authorization.bump
    )]
    pub authorization: BorshAccount<Authorization>,
    /// The wallet that paid for the current delegates. May be the payer.
    #[account(mut, unsafe(dup), address = authorization.delegates_sponsor @ AuthorizerError::WrongSponsor)]
    pub delegates_sponsor: UncheckedAccount,
    pub system_program: Program<System>,
}

/// Replace the delegates by `added` if `clear`, else append them.
///
/// The payer of a longer list becomes its sponsor. While the list has delegates of another sponsor, only that sponsor
/// may add to it. The rent of a shorter list goes back to its sponsor.
pub fn grantee_update(ctx: &mut Context<GranteeUpdate>, clear: bool, added: &[Address]) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let old_count = accounts.authorization.delegates.len();
    let remaining = if clear { 0 } else { old_count };
    let count = remaining.saturating_add(added.len());
    require!(count <= MAX_DELEGATES, AuthorizerError::TooManyDelegates);
    let payer = *accounts.payer.address();
    let is_sponsor = *accounts.delegates_sponsor.address() == payer;
    require!(is_sponsor || old_count == 0 || added.is_empty(), AuthorizerError::WrongSponsor);
    let authorization = &mut accounts.authorization;
    authorization.delegates.truncate(remaining);
    let space = Authorization::space(authorization.scope.len(), count);
    if count > old_count {
        authorization.delegates_sponsor = payer;
    }
    authorization.release_borrow()?;
    let mut view = *authorization.account();
    let sponsor = if count > old_count { accounts.payer.account() } else { accounts.delegates_sponsor.account() };
    realloc_account(&mut view, space, sponsor, true)?;
    authorization.reacquire_borrow_mut()?;
    authorization.delegates.extend_from_slice(added);
    Ok(())
}
