//! Perform the transition that is due.

use super::Permissionless;
use crate::{
    errors::CoordinatorError,
    rules::{sequence, Moment},
};
use anchor_lang::prelude::*;

pub fn tick(ctx: &mut Context<Permissionless>) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let moment = Moment::read(&accounts.slot_hashes)?;
    require!(accounts.machine().tick(&moment)?, CoordinatorError::NothingToTick);
    sequence::seal(&mut accounts.run, &accounts.members, &accounts.witnesses)
}
