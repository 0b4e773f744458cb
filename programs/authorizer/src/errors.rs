//! The errors of the program. Each message states the limit and what to do. Codes count from 6000 in this order.

use anchor_lang::prelude::*;

#[error_code]
pub enum AuthorizerError {
    #[msg("The scope must have 1 to 32 bytes.")]
    ScopeLength,
    #[msg("Only the grantor of this authorization may do this: sign with that wallet.")]
    NotGrantor,
    #[msg("Only the grantee of this authorization may do this: sign with that wallet.")]
    NotGrantee,
    #[msg("An authorization has at most 64 delegates: clear the old ones first.")]
    TooManyDelegates,
    #[msg("The authorization is active: switch it off with grantor_update(false) before closing it.")]
    StillActive,
    #[msg("The authorization has delegates: it can be closed 30 days after the grantor's last update.")]
    ClosedTooEarly,
    #[msg("The rent is returned to the wallet that paid it: pass the sponsors that the authorization names. Clear another sponsor's delegates in a transaction of their own before you add yours.")]
    WrongSponsor,
}
