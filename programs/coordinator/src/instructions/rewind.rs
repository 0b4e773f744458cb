//! Take a halted run back to a checkpoint that the chain has recorded.

use super::OwnerModel;
use crate::{
    errors::CoordinatorError,
    rules::{checkpoints, sequence},
    state::*,
};
use anchor_lang::prelude::*;

pub fn rewind(ctx: &mut Context<OwnerModel>, index: u8, step: u32) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    require!(run.halted(), CoordinatorError::NotHalted);
    checkpoints::choose(&mut accounts.model, index, step)?;
    checkpoints::rewind(run, &accounts.model, &mut accounts.witnesses.backlog);
    sequence::bump(&mut run.model_seq);
    sequence::seal(run, &accounts.members, &accounts.witnesses)
}
