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
    #[account(mut, seeds = [RUN_SEED, run_id.as_bytes()], bump)]
    pub run: UncheckedAccount,
    #[account(mut, seeds = [MODEL_SEED, run_id.as_bytes()], bump)]
    pub model: UncheckedAccount,
    #[account(mut, seeds = [MEMBERS_SEED, run_id.as_bytes()], bump)]
    pub members: UncheckedAccount,
    #[account(mut, seeds = [WITNESSES_SEED, run_id.as_bytes()], bump)]
    pub witnesses: UncheckedAccount,
    pub system_program: Program<System>,
}

/// An account to create: its seed, bump, size and discriminator.
struct Blank(AccountView, &'static [u8], u8, usize, &'static [u8]);

pub fn init_run(
    ctx: &mut Context<InitRun>,
    run_id: &str,
    (main_authority, join_authority): (Address, Address),
    client_version: &str,
) -> Result<()> {
    let valid = !run_id.is_empty() && run_id.len() <= RUN_ID_BYTES && !run_id.as_bytes().contains(&0);
    require!(valid, CoordinatorError::RunIdInvalid);
    let (accounts, bumps) = (&ctx.accounts, &ctx.bumps);
    let bumps = [bumps.run, bumps.model, bumps.members, bumps.witnesses];
    let (run, model) = (*accounts.run.account(), *accounts.model.account());
    let (members, witnesses) = (*accounts.members.account(), *accounts.witnesses.account());
    let blanks = [
        Blank(run, RUN_SEED, bumps[0], 8 + core::mem::size_of::<Run>(), Run::DISCRIMINATOR),
        Blank(model, MODEL_SEED, bumps[1], 8 + core::mem::size_of::<Model>(), Model::DISCRIMINATOR),
        Blank(members, MEMBERS_SEED, bumps[2], GROWTH, Members::DISCRIMINATOR),
        Blank(witnesses, WITNESSES_SEED, bumps[3], GROWTH, Witnesses::DISCRIMINATOR),
    ];
    // one loop, one call: the creation takes more arguments than a call on sBPF may, so it must be inlined, once
    for blank in blanks {
        create(accounts.payer.account(), blank, run_id)?;
    }
    // SAFETY: this instruction created the two accounts, and nothing else borrows their bytes.
    let (mut run, mut model) = unsafe { (Account::<Run>::load_mut(run)?, Account::<Model>::load_mut(model)?) };
    text::copy(&mut model.client_version, client_version, CoordinatorError::ClientVersionTooLong)?;
    model.version = VERSION;
    text::copy(&mut run.run_id, run_id, CoordinatorError::RunIdInvalid)?;
    run.version = VERSION;
    run.bumps = bumps;
    run.main_authority = main_authority;
    run.join_authority = join_authority;
    run.seq = 1;
    Ok(())
}

/// Creates an account and writes its discriminator. Fails when it exists already.
fn create(payer: &AccountView, blank: Blank, run_id: &str) -> Result<()> {
    let Blank(mut view, seed, bump, space, discriminator) = blank;
    create_account_signed(payer, &view, space, &crate::ID, &[seed, run_id.as_bytes(), &[bump]])?;
    // SAFETY: this instruction created the account, and nothing else borrows its bytes.
    let data = unsafe { view.borrow_unchecked_mut() };
    data[..discriminator.len()].copy_from_slice(discriminator);
    Ok(())
}
