//! Creates a run: four program-derived accounts, two of them at the most a program may create at once.

// the seeds use the instruction's arguments; the derive also binds them where it does not need them
#![allow(unused_variables)]

use crate::{constants::*, errors::CoordinatorError, rules::text, state::*};
use alloc::string::String;
use anchor_lang::prelude::*;

#[derive(Accounts)]
#[instruction(run_id: String)]
pub struct InitRun {
    #[account(mut)]
    pub payer: Signer,
    #[account(init, payer = payer, seeds = [RUN_SEED, run_id.as_bytes()], bump)]
    pub run: Account<Run>,
    #[account(init, payer = payer, seeds = [MODEL_SEED, run_id.as_bytes()], bump)]
    pub model: Account<Model>,
    #[account(init, payer = payer, space = GROWTH, seeds = [MEMBERS_SEED, run_id.as_bytes()], bump)]
    pub members: UncheckedAccount,
    #[account(init, payer = payer, space = GROWTH, seeds = [WITNESSES_SEED, run_id.as_bytes()], bump)]
    pub witnesses: UncheckedAccount,
    pub system_program: Program<System>,
}

pub fn init_run(
    ctx: &mut Context<InitRun>,
    run_id: &str,
    (main_authority, join_authority): (Address, Address),
    client_version: &str,
) -> Result<()> {
    let valid = !run_id.is_empty() && run_id.len() <= RUN_ID_BYTES && !run_id.as_bytes().contains(&0);
    require!(valid, CoordinatorError::RunIdInvalid);
    let bumps = [ctx.bumps.run, ctx.bumps.model, ctx.bumps.members, ctx.bumps.witnesses];
    stamp(&ctx.accounts.members, Members::DISCRIMINATOR);
    stamp(&ctx.accounts.witnesses, Witnesses::DISCRIMINATOR);
    let model = &mut ctx.accounts.model;
    text::copy(&mut model.client_version, client_version, CoordinatorError::ClientVersionTooLong)?;
    model.version = VERSION;
    let run = &mut ctx.accounts.run;
    text::copy(&mut run.run_id, run_id, CoordinatorError::RunIdInvalid)?;
    run.version = VERSION;
    run.bumps = bumps;
    run.main_authority = main_authority;
    run.join_authority = join_authority;
    run.seq = 1;
    Ok(())
}

/// Writes the discriminator of an account that this instruction has just created.
fn stamp(account: &UncheckedAccount, discriminator: &[u8]) {
    let mut view = *account.account();
    // SAFETY: the account was created by this instruction, and nothing else borrows its bytes.
    let data = unsafe { view.borrow_unchecked_mut() };
    data[..discriminator.len()].copy_from_slice(discriminator);
}
