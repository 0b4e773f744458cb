//! Write a part of the training spec, which is longer than a transaction. `update` completes it.

use super::OwnerModel;
use crate::{errors::CoordinatorError, rules::sequence};
use anchor_lang::prelude::*;

pub fn write_spec(ctx: &mut Context<OwnerModel>, offset: u16, part: &[u8]) -> Result<()> {
    let run = &mut ctx.accounts.run;
    require!(run.halted(), CoordinatorError::NotHalted);
    let model = &mut ctx.accounts.model;
    let start = usize::from(offset);
    let target = model.spec.get_mut(start..start + part.len());
    target.ok_or(CoordinatorError::SpecLength)?.copy_from_slice(part);
    // The run has no spec and cannot start until `update` names the hash of the new one.
    model.spec_len = 0;
    model.spec_hash = [0; 32];
    sequence::bump(&mut run.model_seq);
    sequence::seal_run(run)
}
