//! Change a halted run: metadata, config, model, schema or progress, or return to the durable checkpoint.

use super::OwnerModel;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{checkpoints, levels, sequence, text, validate_config, validate_model},
    state::*,
};
use alloc::{string::String, vec::Vec};
use anchor_lang::prelude::*;

/// Maximum epoch and step to start from. A run beyond it could overflow within an epoch, and then never end that epoch.
const MAX_COUNTER: u32 = 1 << 31;
/// Maximum sequence to start from, for the same reason.
const MAX_DATA_INDEX: u64 = 1 << 62;

#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct MetadataParams {
    /// At most 64 bytes.
    pub name: String,
    /// At most 280 bytes.
    pub description: String,
    /// Number of parameters of the whole model.
    pub num_parameters: u64,
    /// Number of tokens in the vocabulary.
    pub vocab_size: u64,
}

#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct CheckpointSource {
    /// 1 Hub, 2 local, 3 dummy.
    pub kind: u8,
    /// Repository on the Hub or directory, at most 192 bytes.
    pub repo: String,
    /// Revision of the repository, at most 64 bytes.
    pub revision: String,
}

#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct ModelParams {
    /// Tokens per sequence.
    pub max_seq_len: u32,
    /// Steps over which the learning rate rises again after a pause.
    pub cold_start_warmup_steps: u32,
    pub checkpoint: CheckpointSource,
    pub spec: SpecParams,
}

#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct SchemaParams {
    /// SHA-256 of the state schema.
    pub hash: [u8; 32],
    /// Feed-forward width of each tier, largest first; as many as there are tiers.
    pub tier_widths: Vec<u32>,
}

#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct ProgressParams {
    /// Number of the next epoch, at least that of the run.
    pub epoch: u32,
    /// Number of the next step; first = 1.
    pub step: u32,
    /// Number of the next fresh sequence.
    pub data_index: u64,
}

#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct UpdateParams {
    pub metadata: Option<MetadataParams>,
    pub config: Option<Config>,
    pub model: Option<ModelParams>,
    pub schema: Option<SchemaParams>,
    pub progress: Option<ProgressParams>,
    /// Members load the durable checkpoint instead of asking each other.
    pub use_durable: bool,
}

pub fn update(ctx: &mut Context<OwnerModel>, params: &UpdateParams) -> Result<()> {
    let run: &mut Run = &mut ctx.accounts.run;
    let model: &mut Model = &mut ctx.accounts.model;
    require!(run.halted(), CoordinatorError::NotHalted);
    if let Some(metadata) = &params.metadata {
        set_metadata(model, metadata)?;
    }
    if let Some(config) = &params.config {
        validate_config::check(config)?;
        run.config = *config;
    }
    if let Some(source) = &params.model {
        set_model(run, model, &ctx.accounts.witnesses.backlog, source)?;
    }
    if let Some(schema) = &params.schema {
        set_schema(run, model, schema)?;
    }
    if let Some(progress) = &params.progress {
        set_progress(run, model, &mut ctx.accounts.witnesses.backlog, progress)?;
    }
    if params.use_durable {
        levels::use_durable(run, model);
    }
    run.config.max_seq_len = model.max_seq_len;
    validate_config::check_cold_start(&run.config, model.cold_start_warmup_steps)?;
    sequence::bump(&mut run.model_seq);
    sequence::seal(run, &ctx.accounts.members, &ctx.accounts.witnesses)
}

#[inline(never)]
fn set_metadata(model: &mut Model, metadata: &MetadataParams) -> Result<()> {
    text::copy(&mut model.metadata.name, &metadata.name, CoordinatorError::NameTooLong)?;
    text::copy(&mut model.metadata.description, &metadata.description, CoordinatorError::DescriptionTooLong)?;
    model.metadata.num_parameters = metadata.num_parameters;
    model.metadata.vocab_size = metadata.vocab_size;
    Ok(())
}

#[inline(never)]
fn set_model(run: &mut Run, model: &mut Model, backlog: &Backlog, source: &ModelParams) -> Result<()> {
    validate_model::check_length(source.max_seq_len)?;
    validate_model::check_spec(&model.spec, &source.spec)?;
    let checkpoint = read_checkpoint(&source.checkpoint)?;
    if checkpoint != model.checkpoint {
        let data_index = checkpoints::first_untrained(run, backlog);
        let hashes = [[0; 32]; MAX_LEVELS];
        checkpoints::replace(model, &Recorded { checkpoint, hashes, data_index, step: 0, pad: 0 });
        if run.model_source == model_source::DURABLE {
            levels::use_durable(run, model);
        }
    }
    model.spec_len = source.spec.len;
    model.spec_hash = source.spec.hash;
    model.max_seq_len = source.max_seq_len;
    model.cold_start_warmup_steps = source.cold_start_warmup_steps;
    Ok(())
}

/// Return a checkpoint in its stored form. Fail if the kind is unknown or a string is too long.
pub fn read_checkpoint(source: &CheckpointSource) -> Result<Checkpoint> {
    validate_model::check_checkpoint(source.kind, &source.repo)?;
    let mut checkpoint: Checkpoint = bytemuck::Zeroable::zeroed();
    checkpoint.kind = source.kind;
    text::copy(&mut checkpoint.repo, &source.repo, CoordinatorError::RepoTooLong)?;
    text::copy(&mut checkpoint.revision, &source.revision, CoordinatorError::RevisionTooLong)?;
    Ok(checkpoint)
}

/// Set the schema. A different one makes all known level hashes meaningless.
#[inline(never)]
fn set_schema(run: &mut Run, model: &mut Model, schema: &SchemaParams) -> Result<()> {
    validate_model::check_schema(&schema.hash, &schema.tier_widths)?;
    if schema.hash != model.schema_hash || schema.tier_widths.len() != model.tiers as usize {
        model.checkpoint_hashes = [[0; 32]; MAX_LEVELS];
        checkpoints::forget(model);
        levels::use_durable(run, model);
    }
    model.schema_hash = schema.hash;
    model.tier_widths = [0; MAX_LEVELS];
    model.tier_widths[..schema.tier_widths.len()].copy_from_slice(&schema.tier_widths);
    model.tiers = schema.tier_widths.len() as u8;
    run.levels = model.tiers;
    Ok(())
}

/// Move the run to another epoch, step and sequence. The backlog belongs to the old position and is cleared.
fn set_progress(run: &mut Run, model: &mut Model, backlog: &mut Backlog, progress: &ProgressParams) -> Result<()> {
    require!(progress.step >= 1, CoordinatorError::StepZero);
    // Otherwise statements signed in an earlier epoch of that number would be evidence again.
    require!(progress.epoch >= run.epoch, CoordinatorError::EpochGoesBack);
    let in_range = progress.epoch.max(progress.step) <= MAX_COUNTER && progress.data_index <= MAX_DATA_INDEX;
    require!(in_range, CoordinatorError::Overflow);
    run.epoch = progress.epoch;
    run.step = progress.step;
    run.start_step = 0; // otherwise the last epoch would look undone if it began at this step
    run.data_index = progress.data_index;
    backlog.clear(run);
    run.attested_step = run.attested_step.min(progress.step);
    model.checkpoint_step = model.checkpoint_step.min(progress.step - 1);
    Ok(())
}
