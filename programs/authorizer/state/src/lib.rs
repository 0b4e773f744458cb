//! `Authorization`: one grantor's permission for one grantee within one scope.
//!
//! This is the authorizer's only account. It has its own crate, so that other programs can read it without linking the
//! authorizer.
#![cfg_attr(target_os = "solana", no_std)]
extern crate alloc;

use alloc::vec::Vec;
use anchor_lang::{address_eq, prelude::*};

// The authorizer, which owns the account.
declare_id!("FpUFXHeT4kMX7Ur5Q6rcBhfhGRigMMq7bHVUqqWSMkWb");

pub const AUTHORIZATION_SEED: &[u8] = b"authorization";
pub const MAX_DELEGATES: usize = 64;
pub const MAX_SCOPE_BYTES: usize = 32;
/// Seconds after switching an authorization off before it may be closed, if it has delegates.
pub const CLOSE_DELAY: i64 = 30 * 24 * 60 * 60;
/// The grantee that stands for everyone.
pub const EVERYONE: Address = Address::new_from_array([0; 32]);

#[account(borsh)]
pub struct Authorization {
    pub bump: u8,
    pub grantor: Address,
    pub grantee: Address,
    pub scope: Vec<u8>,
    pub active: bool,
    /// Unix seconds of the grantor's last update.
    pub grantor_update_at: i64,
    /// Who paid for the account, and gets its rent back.
    pub sponsor: Address,
    /// The wallet that paid for the current delegates and gets that back.
    pub delegates_sponsor: Address,
    pub delegates: Vec<Address>,
}

impl Authorization {
    /// Return the size of an account: discriminator, bump, two keys, scope, flag, time, two sponsors, delegates.
    pub fn space(scope: usize, delegates: usize) -> usize {
        8 + 1 + 32 + 32 + (4 + scope) + 1 + 8 + 64 + (4 + 32 * delegates)
    }

    /// Return whether `user` may act within `scope` in the name of `grantor`.
    pub fn is_valid_for(&self, grantor: &Address, user: &Address, scope: &[u8]) -> bool {
        let granted = self.active && address_eq(&self.grantor, grantor) && self.scope == scope;
        granted && self.covers(user)
    }

    fn covers(&self, user: &Address) -> bool {
        let direct = address_eq(&self.grantee, &EVERYONE) || address_eq(&self.grantee, user);
        direct || self.delegates.iter().any(|delegate| address_eq(delegate, user))
    }
}
