//! The grantor closes an inactive authorization. The rent goes back to the wallets that paid it.

use crate::errors::AuthorizerError;
use anchor_lang::{prelude::*, realloc_account};
use authorization::{Authorization, AUTHORIZATION_SEED, CLOSE_DELAY};

#[derive(Accounts)]
pub struct Close {
    #[account(address = authorization.grantor @ AuthorizerError::NotGrantor)]
    pub grantor: Signer,
    #[account(
        mut,
        close = sponsor,
        seeds = [
            AUTHORIZATION_SEED,
            authorization.grantor.as_ref(),
            authorization.grantee.as_ref(),
            authorization.scope.as_slice()
        ],
        bump = authorization.bump
    )]
    pub authorization: BorshAccount<Authorization>,
    /// The wallet that paid for the account. May be the grantor.
    #[account(mut, unsafe(dup), address = authorization.sponsor @ AuthorizerError::WrongSponsor)]
    pub sponsor: UncheckedAccount,
    /// The wallet that paid for the current delegates. May be the same wallet.
    #[account(mut, unsafe(dup), address = authorization.delegates_sponsor @ AuthorizerError::WrongSponsor)]
    pub delegates_sponsor: UncheckedAccount,
}

pub fn close(ctx: &mut Context<Close>) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let authorization = &mut accounts.authorization;
    require!(!authorization.active, AuthorizerError::StillActive);
    let waited = Clock::get()?.unix_timestamp.saturating_sub(authorization.grantor_update_at);
    let may_close = authorization.delegates.is_empty() || waited >= CLOSE_DELAY;
    require!(may_close, AuthorizerError::ClosedTooEarly);
    let scope = authorization.scope.len();
    authorization.delegates.clear();
    authorization.release_borrow()?;
    let mut view = *authorization.account();
    realloc_account(&mut view, Authorization::space(scope, 0), accounts.delegates_sponsor.account(), true)?;
    authorization.reacquire_borrow_mut()
}
