//! Create the four accounts of a run. Members and witnesses start at the maximum size that one instruction may create.

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

/// The wallets that control a run.
pub struct Authorities {
    pub main: Address,
    pub join: Address,
}

pub fn init_run(
    ctx: &mut Context<InitRun>,
    run_id: &str,
    authorities: &Authorities,
    client_version: &str,
) -> Result<()> {
    let valid = !run_id.is_empty() && run_id.len() <= RUN_ID_BYTES && !run_id.as_bytes().contains(&0);
    require!(valid, CoordinatorError::RunIdInvalid);
    let accounts = &ctx.accounts;
    let run = *accounts.run.account();
    let model = *accounts.model.account();
    let members = *accounts.members.account();
    let witnesses = *accounts.witnesses.account();
    let seeds_of = |seed: &'static [u8]| [seed, run_id.as_bytes()];
    let seeds = [seeds_of(RUN_SEED), seeds_of(MODEL_SEED), seeds_of(MEMBERS_SEED), seeds_of(WITNESSES_SEED)];
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
    // SAFETY: this instruction created the account, and nothing else borrows its bytes.
    let mut run = unsafe { Account::<Run>::load_mut(run)? };
    // SAFETY: as above.
    let mut model = unsafe { Account::<Model>::load_mut(model)? };
    text::copy(&mut model.client_version, client_version, CoordinatorError::ClientVersionTooLong)?;
    model.version = VERSION;
    text::copy(&mut run.run_id, run_id, CoordinatorError::RunIdInvalid)?;
    run.version = VERSION;
    run.bumps = bumps;
    run.main_authority = authorities.main;
    run.join_authority = authorities.join;
    run.seq = 1;
    run.created = Clock::get()?.slot;
    Ok(())
}
