//! The grantee names wallets that may act in its place.

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
    pub system_program: Program<System>,
}

/// Growing is paid by `payer`, who also gets the rent back when the list shrinks.
pub fn grantee_update(ctx: &mut Context<GranteeUpdate>, clear: bool, added: &[Address]) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let old = accounts.authorization.delegates.len();
    let kept = if clear { 0 } else { old };
    let count = kept.saturating_add(added.len());
    require!(count <= MAX_DELEGATES, AuthorizerError::TooManyDelegates);
    let authorization = &mut accounts.authorization;
    authorization.delegates.truncate(kept);
    let space = Authorization::space(authorization.scope.len(), count);
    authorization.release_borrow()?;
    let mut view = *authorization.account();
    realloc_account(&mut view, space, accounts.payer.account(), true)?;
    authorization.reacquire_borrow_mut()?;
    authorization.delegates.extend_from_slice(added);
    Ok(())
}
