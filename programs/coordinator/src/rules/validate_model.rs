//! What a model and a schema must satisfy. Doubles are judged by their bits: the program has no floats.

use crate::{constants::*, errors::CoordinatorError, instructions::*, state::*};
use anchor_lang::prelude::*;

const MAX_SEQ_LEN: u32 = 1 << 24;
const MAX_CHUNK: u16 = 4_096;
const MAX_INNER_STEPS: u16 = 1_024;
/// Bits of the double 64.0.
const MAX_OUTER_RATE: u64 = 0x4050_0000_0000_0000;
/// Bits of the double 1.0.
const ONE: u64 = 0x3ff0_0000_0000_0000;
/// Bits of positive infinity: smaller bit patterns are the finite numbers of at least 0.
const INFINITY: u64 = 0x7ff0_0000_0000_0000;

fn finite(bits: u64) -> bool {
    bits < INFINITY
}

#[inline(never)]
pub fn check(model: &ModelParams) -> Result<()> {
    require!(model.architecture <= architecture::LAST, CoordinatorError::UnknownArchitecture);
    require!(model.data_type <= 1, CoordinatorError::UnknownDataType);
    let length = model.max_seq_len;
    require!((1..=MAX_SEQ_LEN).contains(&length), CoordinatorError::MaxSeqLenOutOfRange);
    check_location(&model.data_location)?;
    check_schedule(&model.lr_schedule)?;
    check_optimizer(&model.optimizer)
}

#[inline(never)]
pub fn check_checkpoint(kind: u8, repo: &str) -> Result<()> {
    let known = matches!(kind, checkpoint_kind::HUB | checkpoint_kind::LOCAL | checkpoint_kind::DUMMY);
    require!(known, CoordinatorError::UnknownCheckpoint);
    require!(kind == checkpoint_kind::DUMMY || !repo.is_empty(), CoordinatorError::RepoMissing);
    Ok(())
}

fn check_location(location: &DataLocationParams) -> Result<()> {
    require!(location.kind <= data_kind::LAST, CoordinatorError::UnknownDataLocation);
    require!(matches!(location.token_bytes, 2 | 4), CoordinatorError::TokenBytesInvalid);
    require!(location.shuffle <= 1, CoordinatorError::UnknownShuffle);
    let named = location.kind == data_kind::DUMMY || !location.primary.is_empty();
    require!(named, CoordinatorError::LocationLength);
    let numbered = location.kind == data_kind::HTTP_NUMBERED_FILES;
    require!(!numbered || location.num_files > 0, CoordinatorError::NumFilesZero);
    Ok(())
}

fn check_schedule(schedule: &LrSchedule) -> Result<()> {
    require!(schedule.kind <= lr_kind::WARMUP_STABLE_DECAY, CoordinatorError::UnknownSchedule);
    let (base, first) = (schedule.base_lr_bits, schedule.warmup_init_lr_bits);
    let rates = [base, first, schedule.final_lr_bits, schedule.cosine_decay_final_lr_bits];
    let valid = base > 0 && rates.into_iter().all(finite);
    require!(valid, CoordinatorError::LearningRateInvalid);
    let decays = matches!(schedule.kind, lr_kind::LINEAR | lr_kind::COSINE);
    let long_enough = !decays || schedule.total_steps > schedule.warmup_steps;
    require!(long_enough, CoordinatorError::ScheduleTooShort);
    Ok(())
}

fn check_optimizer(optimizer: &Optimizer) -> Result<()> {
    let (distro, sparseloco) = (optimizer.kind == optimizer_kind::DISTRO, optimizer.kind == optimizer_kind::SPARSELOCO);
    let known = optimizer.kind == optimizer_kind::ADAMW || distro || sparseloco;
    require!(known, CoordinatorError::UnknownOptimizer);
    let unbounded = [optimizer.clip_grad_norm_bits, optimizer.weight_decay_bits, optimizer.eps_bits];
    let below_one = [optimizer.compression_decay_bits, optimizer.beta1_bits, optimizer.beta2_bits];
    let valid = unbounded.into_iter().all(finite) && below_one.into_iter().all(|bits| bits < ONE);
    require!(valid, CoordinatorError::OptimizerNumberInvalid);
    require!(optimizer.quantize_1bit <= 1, CoordinatorError::QuantizeInvalid);
    if distro || sparseloco {
        check_compression(optimizer)?;
    }
    if sparseloco {
        check_sparseloco(optimizer)?;
    }
    Ok(())
}

fn check_compression(optimizer: &Optimizer) -> Result<()> {
    let chunk = optimizer.compression_chunk;
    require!((1..=MAX_CHUNK).contains(&chunk), CoordinatorError::ChunkOutOfRange);
    let block = u32::from(chunk) * u32::from(chunk);
    let (topk, embeddings) = (optimizer.compression_topk, optimizer.compression_topk_embeddings);
    let fits = topk >= 1 && u32::from(topk.max(embeddings)) <= block;
    require!(fits, CoordinatorError::TopkOutOfRange);
    Ok(())
}

fn check_sparseloco(optimizer: &Optimizer) -> Result<()> {
    let steps = (1..=MAX_INNER_STEPS).contains(&optimizer.inner_steps);
    require!(steps, CoordinatorError::InnerStepsOutOfRange);
    let outer = (1..=MAX_OUTER_RATE).contains(&optimizer.outer_lr_bits);
    require!(outer && optimizer.orthogonal_lr_bits <= MAX_OUTER_RATE, CoordinatorError::OuterRateOutOfRange);
    require!(matches!(optimizer.value_bits, 1 | 2), CoordinatorError::ValueBitsInvalid);
    require!(optimizer.inner_optimizer <= LAST_INNER_OPTIMIZER, CoordinatorError::UnknownInnerOptimizer);
    require!(optimizer.divisor <= LAST_DIVISOR, CoordinatorError::UnknownDivisor);
    Ok(())
}

#[inline(never)]
pub fn check_schema(hash: &Hash, widths: &[u32]) -> Result<()> {
    require!((1..=MAX_LEVELS).contains(&widths.len()), CoordinatorError::TiersOutOfRange);
    let falling = widths.windows(2).all(|pair| pair[0] > pair[1]);
    let positive = widths.iter().all(|width| *width > 0);
    require!(falling && positive, CoordinatorError::TierWidthsInvalid);
    require!(*hash != [0; 32], CoordinatorError::SchemaHashZero);
    Ok(())
}
