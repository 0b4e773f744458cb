//! An elected witness reports during warm-up that it holds the model and is ready to train.

use super::Permissionless;
use crate::{
    errors::CoordinatorError,
    rules::{bitmap, committee, members},
    state::*,
};
use anchor_lang::prelude::*;

pub fn warmup_witness(ctx: &mut Context<Permissionless>, slot: u8, at: &Place) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    require!(run.state == run_state::WARMUP, CoordinatorError::WrongState);
    require!(run.is_at(at, 0), CoordinatorError::StaleHeight);
    members::check_healthy(&accounts.members, slot, accounts.user.address())?;
    let round = &mut run.rounds[0];
    require!(committee::is_witness(round, &accounts.members, slot), CoordinatorError::NotElected);
    require!(!bitmap::has(&round.attested, slot), CoordinatorError::DuplicateWitness);
    bitmap::set(&mut round.attested, slot);
    round.attestations = round.attestations.saturating_add(1);
    accounts.finish()
}
