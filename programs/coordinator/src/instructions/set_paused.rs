//! Pause a run (after its running epoch), or start, resume or reopen one.

use super::OwnerOnly;
use crate::{
    errors::CoordinatorError,
    rules::{epoch, levels, now, sequence, validate_config},
    state::*,
};
use anchor_lang::prelude::*;

pub fn set_paused(ctx: &mut Context<OwnerOnly>, paused: bool) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    if paused {
        require!(!run.halted(), CoordinatorError::AlreadyHalted);
        if run.active() {
            run.pending_pause = 1;
        } else {
            epoch::pause(run, &mut accounts.members, &mut accounts.witnesses.backlog, now()?);
        }
    } else if run.active() && run.pending_pause == 1 {
        run.pending_pause = 0;
    } else {
        resume(run, &accounts.model)?;
    }
    sequence::seal(run, &accounts.members, &accounts.witnesses)
}

fn resume(run: &mut Run, model: &Model) -> Result<()> {
    match run.state {
        run_state::UNINITIALIZED => {
            require!(run.config.total_steps > 0, CoordinatorError::ConfigMissing);
            require!(model.max_seq_len > 0, CoordinatorError::ModelMissing);
            require!(model.tiers > 0, CoordinatorError::SchemaMissing);
            if run.step == 0 {
                run.step = 1;
            }
            run.cold_start = 1;
            levels::use_durable(run, model);
        }
        run_state::PAUSED => {}
        run_state::FINISHED => {
            require!(run.step <= run.config.total_steps, CoordinatorError::StepsDone);
            run.cold_start = 1;
        }
        _ => return Err(CoordinatorError::NotPaused.into()),
    }
    require!(model.spec_len > 0, CoordinatorError::SpecMissing);
    validate_config::check_cold_start(&run.config, model.cold_start_warmup_steps)?;
    let finished = run.step > run.config.total_steps;
    run.enter(if finished { run_state::FINISHED } else { run_state::WAITING_FOR_MEMBERS }, now()?);
    Ok(())
}
