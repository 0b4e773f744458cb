//! An elected witness reports during warm-up that it holds the model and is ready to train.

use super::Permissionless;
use crate::{
    errors::CoordinatorError,
    rules::{bitmap, committee, members},
    state::*,
};
use anchor_lang::prelude::*;

pub fn warmup_witness(ctx: &mut Context<Permissionless>, seat: u8, at: &RoundId) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    require!(run.state == run_state::WARMUP, CoordinatorError::WrongState);
    let seed_is_drawn = run.seed_slot == 0; // before, nobody is elected
    require!(seed_is_drawn && run.is_at(at, 0), CoordinatorError::StaleHeight);
    members::check_healthy(&accounts.members, seat, accounts.user.address())?;
    let elected = committee::is_witness(run, &accounts.members, &run.rounds[0], seat);
    require!(elected, CoordinatorError::NotElected);
    let round = &mut run.rounds[0];
    require!(!bitmap::has(&round.attested, seat), CoordinatorError::DuplicateWitness);
    bitmap::set(&mut round.attested, seat);
    round.attestations = round.attestations.saturating_add(1);
    accounts.finish()
}
