//! Grow members or witnesses by up to 10,240 bytes, the limit of one instruction. Anyone may pay for it.

use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::{prelude::*, realloc_account};

#[derive(Accounts)]
pub struct Grow {
    #[account(mut)]
    pub payer: Signer,
    #[account(address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(mut, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: UncheckedAccount,
    #[account(mut, address = run.address_of(WITNESSES_SEED, 3) @ ErrorCode::ConstraintSeeds)]
    pub witnesses: UncheckedAccount,
    pub system_program: Program<System>,
}

pub fn grow(ctx: &mut Context<Grow>, which: u8) -> Result<()> {
    let accounts = &ctx.accounts;
    let (view, full_size, is_grown) = match which {
        0 => {
            let view = *accounts.members.account();
            (view, Grown::<Members>::BYTES, check_growing::<Members>(&view)?)
        }
        1 => {
            let view = *accounts.witnesses.account();
            (view, Grown::<Witnesses>::BYTES, check_growing::<Witnesses>(&view)?)
        }
        _ => return Err(CoordinatorError::UnknownAccount.into()),
    };
    require!(!is_grown, CoordinatorError::AlreadyGrown);
    let target = full_size.min(view.data_len() + GROWTH);
    let mut view = view;
    realloc_account(&mut view, target, accounts.payer.account(), true)
}
