//! An elected member states the hashes of the levels that it holds, in a cooldown.

use super::Permissionless;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{cooldown, members},
    state::*,
};
use anchor_lang::prelude::*;

pub fn attest(ctx: &mut Context<Permissionless>, seat: u8, at: &RoundId, mask: u8, hashes: &[Hash]) -> Result<()> {
    let accounts = &mut ctx.accounts;
    require!(accounts.run.state == run_state::COOLDOWN, CoordinatorError::WrongState);
    require!(accounts.run.is_at(at, 0), CoordinatorError::StaleHeight);
    let valid = mask != 0 && mask.count_ones() as usize == hashes.len();
    require!(valid, CoordinatorError::HashesInvalid);
    members::check_healthy(&accounts.members, seat, accounts.user.address())?;
    let statement = cooldown::Statement { seat, mask, hashes };
    cooldown::attest(&mut accounts.run, &accounts.members, &mut accounts.witnesses, &statement)?;
    accounts.finish()
}
