//! Set the only client version that may join.

use super::OwnerModel;
use crate::{
    errors::CoordinatorError,
    rules::{sequence, text},
};
use anchor_lang::prelude::*;

pub fn update_client_version(ctx: &mut Context<OwnerModel>, client_version: &str) -> Result<()> {
    let run = &mut ctx.accounts.run;
    require!(run.halted(), CoordinatorError::NotHalted);
    let stored = &mut ctx.accounts.model.client_version;
    text::copy(stored, client_version, CoordinatorError::ClientVersionTooLong)?;
    sequence::bump(&mut run.model_seq);
    sequence::seal_run(run)
}
