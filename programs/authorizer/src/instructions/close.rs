//! The grantor removes an authorization that is switched off.

use crate::errors::AuthorizerError;
use anchor_lang::prelude::*;
use authorization::{Authorization, AUTHORIZATION_SEED, CLOSE_DELAY};

#[derive(Accounts)]
pub struct Close {
    #[account(address = authorization.grantor @ AuthorizerError::NotGrantor)]
    pub grantor: Signer,
    #[account(
        mut,
        close = spill,
        seeds = [
            AUTHORIZATION_SEED,
            authorization.grantor.as_ref(),
            authorization.grantee.as_ref(),
            authorization.scope.as_slice()
        ],
        bump = authorization.bump
    )]
    pub authorization: BorshAccount<Authorization>,
    /// Receives the rent; may be the grantor.
    #[account(mut, unsafe(dup))]
    pub spill: UncheckedAccount,
}

pub fn close(ctx: &mut Context<Close>) -> Result<()> {
    let authorization = &ctx.accounts.authorization;
    require!(ctx.accounts.spill.address() != authorization.address(), AuthorizerError::SpillCloses);
    require!(!authorization.active, AuthorizerError::StillActive);
    let waited = Clock::get()?.unix_timestamp.saturating_sub(authorization.grantor_update_at);
    let free = authorization.delegates.is_empty() || waited >= CLOSE_DELAY;
    require!(free, AuthorizerError::ClosedTooEarly);
    Ok(())
}
