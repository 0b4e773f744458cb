//! The accounts of the main authority's instructions, in one order.

use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct OwnerOnly {
    #[account(address = run.main_authority @ CoordinatorError::NotMainAuthority)]
    pub authority: Signer,
    #[account(mut, seeds = [RUN_SEED, run.seed()], bump = run.bumps[0])]
    pub run: Account<Run>,
    #[account(seeds = [MODEL_SEED, run.seed()], bump = run.bumps[1])]
    pub model: Account<Model>,
    #[account(mut, seeds = [MEMBERS_SEED, run.seed()], bump = run.bumps[2])]
    pub members: Grown<Members>,
    #[account(mut, seeds = [WITNESSES_SEED, run.seed()], bump = run.bumps[3])]
    pub witnesses: Grown<Witnesses>,
}

/// The same with a model that changes.
#[derive(Accounts)]
pub struct OwnerModel {
    #[account(address = run.main_authority @ CoordinatorError::NotMainAuthority)]
    pub authority: Signer,
    #[account(mut, seeds = [RUN_SEED, run.seed()], bump = run.bumps[0])]
    pub run: Account<Run>,
    #[account(mut, seeds = [MODEL_SEED, run.seed()], bump = run.bumps[1])]
    pub model: Account<Model>,
    #[account(mut, seeds = [MEMBERS_SEED, run.seed()], bump = run.bumps[2])]
    pub members: Grown<Members>,
    #[account(mut, seeds = [WITNESSES_SEED, run.seed()], bump = run.bumps[3])]
    pub witnesses: Grown<Witnesses>,
}
