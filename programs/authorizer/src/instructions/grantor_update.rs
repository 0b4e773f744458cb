//! The grantor switches its authorization on or off.

use crate::errors::AuthorizerError;
use anchor_lang::prelude::*;
use authorization::{Authorization, AUTHORIZATION_SEED};

#[derive(Accounts)]
pub struct GrantorUpdate {
    #[account(address = authorization.grantor @ AuthorizerError::NotGrantor)]
    pub grantor: Signer,
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
}

pub fn grantor_update(ctx: &mut Context<GrantorUpdate>, active: bool) -> Result<()> {
    let authorization = &mut ctx.accounts.authorization;
    authorization.active = active;
    authorization.grantor_update_at = Clock::get()?.unix_timestamp;
    Ok(())
}
