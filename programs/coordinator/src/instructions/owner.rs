//! The accounts of the main authority's instructions, always in the same order.

use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct OwnerOnly {
    #[account(address = run.main_authority @ CoordinatorError::NotMainAuthority)]
    pub authority: Signer,
    #[account(mut, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(address = run.address_of(MODEL_SEED, 1) @ ErrorCode::ConstraintSeeds)]
    pub model: Account<Model>,
    #[account(mut, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    #[account(mut, address = run.address_of(WITNESSES_SEED, 3) @ ErrorCode::ConstraintSeeds)]
    pub witnesses: Grown<Witnesses>,
}

/// The accounts of an instruction that changes the model.
#[derive(Accounts)]
pub struct OwnerModel {
    #[account(address = run.main_authority @ CoordinatorError::NotMainAuthority)]
    pub authority: Signer,
    #[account(mut, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(mut, address = run.address_of(MODEL_SEED, 1) @ ErrorCode::ConstraintSeeds)]
    pub model: Account<Model>,
    #[account(address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    #[account(mut, address = run.address_of(WITNESSES_SEED, 3) @ ErrorCode::ConstraintSeeds)]
    pub witnesses: Grown<Witnesses>,
}
