//! Validate a config. Each rule has its own error, and the client checks the same rules before it sends.

use crate::{constants::*, errors::CoordinatorError, state::Config};
use anchor_lang::prelude::*;

/// Maximum number of batch warm-up tokens. More would overflow the product in `batch::size`.
const MAX_WARMUP_TOKENS: u64 = 1 << 47;

/// Maximum duration in seconds. An epoch in which nobody acts ends only by time, so no time may be unlimited.
pub const MAX_TIME: u64 = 30 * 24 * 60 * 60;

#[inline(never)]
pub fn check(config: &Config) -> Result<()> {
    check_times(config)?;
    check_clients(config)?;
    check_batch(config)?;
    require!(config.total_steps > 0, CoordinatorError::TotalStepsZero);
    require!(config.verification_percent <= 100, CoordinatorError::VerificationPercentTooLarge);
    require!(config.overlap <= 1, CoordinatorError::OverlapInvalid);
    Ok(())
}

fn check_times(config: &Config) -> Result<()> {
    let epoch = config.epoch_time;
    let round = config.max_round_train_time;
    require!(epoch > 0 || config.rounds_per_epoch > 0, CoordinatorError::EpochLengthMissing);
    require!(epoch == 0 || config.warmup_time < epoch, CoordinatorError::WarmupTooLong);
    require!(config.cooldown_time > 0, CoordinatorError::CooldownTimeZero);
    require!(round > 0, CoordinatorError::RoundTrainTimeZero);
    require!(epoch == 0 || round < epoch, CoordinatorError::RoundTrainTimeTooLong);
    require!(config.min_round_time <= round, CoordinatorError::MinRoundTimeInvalid);
    require!(config.round_witness_time > 0, CoordinatorError::RoundWitnessTimeZero);
    require!(config.waiting_for_members_extra_time > 0, CoordinatorError::ExtraTimeZero);
    let times = [epoch, round, config.warmup_time, config.cooldown_time, config.round_witness_time];
    require!(times.iter().all(|time| *time <= MAX_TIME), CoordinatorError::TimeTooLong);
    Ok(())
}

fn check_clients(config: &Config) -> Result<()> {
    let minimum = config.min_clients;
    let initial = config.init_min_clients;
    let witnesses = u16::from(config.witness_nodes);
    require!(minimum > 0, CoordinatorError::MinClientsZero);
    let initial_fits = initial >= minimum && initial as usize <= MAX_MEMBERS;
    require!(initial_fits, CoordinatorError::InitMinClientsOutOfRange);
    require!(witnesses as usize <= MAX_WITNESSES, CoordinatorError::WitnessNodesTooMany);
    require!(witnesses <= minimum, CoordinatorError::WitnessNodesAboveMinClients);
    Ok(())
}

fn check_batch(config: &Config) -> Result<()> {
    let start = config.global_batch_size_start;
    let end = config.global_batch_size_end;
    require!(start > 0, CoordinatorError::BatchSizeZero);
    require!(end >= start, CoordinatorError::BatchSizeShrinks);
    let warmup = config.global_batch_size_warmup_tokens;
    require!(warmup <= MAX_WARMUP_TOKENS, CoordinatorError::BatchWarmupTooLong);
    Ok(())
}

/// Refuse a learning-rate cold start of `steps` that does not end within an epoch. Needs both config and model.
pub fn check_cold_start(config: &Config, steps: u32) -> Result<()> {
    let by_count = config.rounds_per_epoch == 0 || steps <= config.rounds_per_epoch;
    let training = config.epoch_time.saturating_sub(config.warmup_time);
    let by_time = match training.checked_div(config.max_round_train_time) {
        Some(rounds) if config.epoch_time > 0 => u64::from(steps) <= rounds,
        _ => true,
    };
    require!(by_count && by_time, CoordinatorError::ColdStartTooLong);
    Ok(())
}
