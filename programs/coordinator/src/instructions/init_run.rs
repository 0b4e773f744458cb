//! Creates a run: four program-derived accounts, two of them at the most a program may create at once.

use crate::{constants::*, errors::CoordinatorError, rules::text, state::*};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct InitRun {
    #[account(mut)]
    pub payer: Signer,
    #[account(mut)]
    pub run: UncheckedAccount,
    #[account(mut)]
    pub model: UncheckedAccount,
    #[account(mut)]
    pub members: UncheckedAccount,
    #[account(mut)]
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
    let accounts = &ctx.accounts;
    let (run, model) = (*accounts.run.account(), *accounts.model.account());
    let (members, witnesses) = (*accounts.members.account(), *accounts.witnesses.account());
    let of = |seed: &'static [u8]| [seed, run_id.as_bytes()];
    let seeds = [of(RUN_SEED), of(MODEL_SEED), of(MEMBERS_SEED), of(WITNESSES_SEED)];
    let kinds = [
        (run, 8 + core::mem::size_of::<Run>(), Run::DISCRIMINATOR),
        (model, 8 + core::mem::size_of::<Model>(), Model::DISCRIMINATOR),
        (members, GROWTH, Members::DISCRIMINATOR),
        (witnesses, GROWTH, Witnesses::DISCRIMINATOR),
    ];
    let mut bumps = [0; 4];
    for ((bump, seeds), (view, space, discriminator)) in bumps.iter_mut().zip(&seeds).zip(kinds) {
        *bump = Blank { view, seeds, space, discriminator }.create(accounts.payer.account())?;
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
    run.created = Clock::get()?.slot;
    Ok(())
}
