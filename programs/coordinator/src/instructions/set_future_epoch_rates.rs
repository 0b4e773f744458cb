//! Set the points that future epochs pay and take.

use super::OwnerOnly;
use crate::rules::sequence;
use anchor_lang::prelude::*;

pub fn set_future_epoch_rates(ctx: &mut Context<OwnerOnly>, earning: Option<u64>, slashing: Option<u64>) -> Result<()> {
    let run = &mut ctx.accounts.run;
    if let Some(rate) = earning {
        run.future_earning_rate = rate;
    }
    if let Some(rate) = slashing {
        run.future_slashing_rate = rate;
    }
    sequence::seal_run(run)
}
