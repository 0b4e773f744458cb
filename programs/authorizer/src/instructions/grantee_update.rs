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
    /// Paid for the delegates there are; may be the payer.
    #[account(mut, unsafe(dup), address = authorization.delegates_sponsor @ AuthorizerError::WrongSponsor)]
    pub delegates_sponsor: UncheckedAccount,
    pub system_program: Program<System>,
}

/// Growing is paid by `payer`, who sponsors the list from then on; while there are delegates of another sponsor, only that
/// one may add to them. What a list that shrinks had cost goes back to its sponsor.
pub fn grantee_update(ctx: &mut Context<GranteeUpdate>, clear: bool, added: &[Address]) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let old = accounts.authorization.delegates.len();
    let kept = if clear { 0 } else { old };
    let count = kept.saturating_add(added.len());
    require!(count <= MAX_DELEGATES, AuthorizerError::TooManyDelegates);
    let payer = *accounts.payer.address();
    let own = *accounts.delegates_sponsor.address() == payer;
    require!(own || old == 0 || added.is_empty(), AuthorizerError::WrongSponsor);
    let authorization = &mut accounts.authorization;
    authorization.delegates.truncate(kept);
    let space = Authorization::space(authorization.scope.len(), count);
    if count > old {
        authorization.delegates_sponsor = payer;
    }
    authorization.release_borrow()?;
    let mut view = *authorization.account();
    let purse = if count > old { accounts.payer.account() } else { accounts.delegates_sponsor.account() };
    realloc_account(&mut view, space, purse, true)?;
    authorization.reacquire_borrow_mut()?;
    authorization.delegates.extend_from_slice(added);
    Ok(())
}
