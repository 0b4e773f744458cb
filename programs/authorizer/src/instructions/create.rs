//! A grantor creates an inactive authorization.

// The seeds use the instruction's arguments, but the derive macro binds them everywhere.
#![allow(unused_variables)]

use crate::errors::AuthorizerError;
use alloc::vec::Vec;
use anchor_lang::prelude::*;
use authorization::{Authorization, AUTHORIZATION_SEED, MAX_SCOPE_BYTES};

#[derive(Accounts)]
#[instruction(grantee: Address, scope: Vec<u8>)]
pub struct Create {
    /// May be the other signer: both only sign, and only this one pays.
    #[account(mut, unsafe(dup))]
    pub payer: Signer,
    pub grantor: Signer,
    #[account(
        init,
        payer = payer,
        space = Authorization::space(scope.len(), 0),
        seeds = [AUTHORIZATION_SEED, grantor.address().as_ref(), grantee.as_ref(), scope.as_slice()],
        bump
    )]
    pub authorization: BorshAccount<Authorization>,
    pub system_program: Program<System>,
}

pub fn create(ctx: &mut Context<Create>, grantee: Address, scope: Vec<u8>) -> Result<()> {
    let valid = !scope.is_empty() && scope.len() <= MAX_SCOPE_BYTES;
    require!(valid, AuthorizerError::ScopeLength);
    let grantor_update_at = Clock::get()?.unix_timestamp;
    let bump = ctx.bumps.authorization;
    let grantor = *ctx.accounts.grantor.address();
    let sponsor = *ctx.accounts.payer.address();
    let authorization = &mut *ctx.accounts.authorization;
    *authorization = Authorization {
        bump,
        grantor,
        grantee,
        scope,
        active: false,
        grantor_update_at,
        sponsor,
        delegates_sponsor: sponsor,
        delegates: Vec::new(),
    };
    Ok(())
}
