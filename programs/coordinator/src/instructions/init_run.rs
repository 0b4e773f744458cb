//! Creates a run: four program-derived accounts, two of them at the most a program may create at once.

use crate::{constants::*, errors::CoordinatorError, rules::text, state::*};
use anchor_lang::{find_and_verify_program_address, prelude::*};

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

/// An account to create: its seed, size and discriminator.
struct Blank(AccountView, &'static [u8], usize, &'static [u8]);

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
    let blanks = [
        Blank(run, RUN_SEED, 8 + core::mem::size_of::<Run>(), Run::DISCRIMINATOR),
        Blank(model, MODEL_SEED, 8 + core::mem::size_of::<Model>(), Model::DISCRIMINATOR),
        Blank(members, MEMBERS_SEED, GROWTH, Members::DISCRIMINATOR),
        Blank(witnesses, WITNESSES_SEED, GROWTH, Witnesses::DISCRIMINATOR),
    ];
    let mut bumps = [0; 4];
    // one loop, one call: the creation takes more arguments than a call on sBPF may, so it must be inlined, once
    for (bump, blank) in bumps.iter_mut().zip(blanks) {
        *bump = create(accounts.payer.account(), blank, run_id)?;
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

/// Creates an account at its canonical address, writes its discriminator and returns its bump.
fn create(payer: &AccountView, blank: Blank, run_id: &str) -> Result<u8> {
    let Blank(mut view, seed, space, discriminator) = blank;
    let id = run_id.as_bytes();
    let bump = find_and_verify_program_address(&[seed, id], &crate::ID, view.address())?;
    create_account_signed(payer, &view, space, &crate::ID, &[seed, id, &[bump]])?;
    // SAFETY: this instruction created the account, and nothing else borrows its bytes.
    let data = unsafe { view.borrow_unchecked_mut() };
    data[..discriminator.len()].copy_from_slice(discriminator);
    Ok(bump)
}
