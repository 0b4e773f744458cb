//! Authorizer: a grantor authorizes a grantee, or everyone, within a scope. The grantee may name delegates.
#![cfg_attr(target_os = "solana", no_std)]
extern crate alloc;

use alloc::vec::Vec;
use anchor_lang::prelude::*;

pub mod errors;
pub mod instructions;
#[path = "../../coordinator/src/runtime.rs"]
pub mod runtime;

use instructions::*;

declare_id!("FpUFXHeT4kMX7Ur5Q6rcBhfhGRigMMq7bHVUqqWSMkWb");

#[program]
pub mod authorizer {
    use super::*;

    /// Creates an inactive authorization for a `scope` of 1 to 32 bytes. A `grantee` of 32 zero bytes stands for everyone.
    pub fn create(ctx: &mut Context<Create>, grantee: Address, scope: Vec<u8>) -> Result<()> {
        instructions::create(ctx, grantee, scope)
    }

    /// The grantor switches the authorization on or off.
    pub fn grantor_update(ctx: &mut Context<GrantorUpdate>, active: bool) -> Result<()> {
        instructions::grantor_update(ctx, active)
    }

    /// The grantee adds wallets that may act in its place, at most 64 in total. `delegates_clear` first removes the old
    /// ones.
    pub fn grantee_update(
        ctx: &mut Context<GranteeUpdate>,
        delegates_clear: bool,
        delegates_added: Vec<Address>,
    ) -> Result<()> {
        instructions::grantee_update(ctx, delegates_clear, &delegates_added)
    }

    /// The grantor removes an inactive authorization.
    pub fn close(ctx: &mut Context<Close>) -> Result<()> {
        instructions::close(ctx)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn account_owner_is_this_program() {
        assert_eq!(crate::ID, authorization::ID);
    }
}
