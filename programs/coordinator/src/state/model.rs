//! `Model`: what is trained, on what data and how. Changes on `update` and `checkpoint` only.

use crate::constants::*;
use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

/// Values of `Checkpoint::kind`.
pub mod checkpoint_kind {
    pub const NONE: u8 = 0;
    pub const HUB: u8 = 1;
    pub const LOCAL: u8 = 2;
    /// Seeded weights instead of stored ones.
    pub const DUMMY: u8 = 3;
}

/// Values of `DataLocation::kind`.
pub mod data_kind {
    pub const DUMMY: u8 = 0;
    pub const HTTP_NUMBERED_FILES: u8 = 4;
    pub const LAST: u8 = 7;
}

/// Values of `Model::architecture`: Llama, DeepSeek, any of transformers, NanoGPT.
pub mod architecture {
    pub const LAST: u8 = 3;
}

/// Values of `LrSchedule::kind`.
pub mod lr_kind {
    pub const LINEAR: u32 = 1;
    pub const COSINE: u32 = 2;
    pub const WARMUP_STABLE_DECAY: u32 = 3;
}

/// Values of `Optimizer::kind`.
pub mod optimizer_kind {
    pub const ADAMW: u32 = 1;
    pub const DISTRO: u32 = 2;
    pub const SPARSELOCO: u32 = 3;
}

/// The last value of `Optimizer::inner_optimizer`.
pub const LAST_INNER_OPTIMIZER: u8 = 1;
/// The last value of `Optimizer::divisor`.
pub const LAST_DIVISOR: u8 = 2;

#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Metadata {
    pub num_parameters: u64,
    pub vocab_size: u64,
    pub name: [u8; NAME_BYTES],
    pub description: [u8; DESCRIPTION_BYTES],
}

/// Learning rates travel as the bits of an IEEE double.
#[derive(Clone, Copy, Pod, Zeroable, AnchorSerialize, AnchorDeserialize, IdlType)]
#[repr(C)]
pub struct LrSchedule {
    pub base_lr_bits: u64,
    pub warmup_init_lr_bits: u64,
    /// Linear, cosine: the last rate. Warm-up-stable-decay: the end of the linear decay.
    pub final_lr_bits: u64,
    pub cosine_decay_final_lr_bits: u64,
    /// 0 constant, 1 linear, 2 cosine, 3 warm-up-stable-decay.
    pub kind: u32,
    pub warmup_steps: u32,
    pub total_steps: u32,
    pub stable_steps: u32,
    pub cosine_decay_steps: u32,
    pub linear_decay_steps: u32,
}

#[derive(Clone, Copy, Pod, Zeroable, AnchorSerialize, AnchorDeserialize, IdlType)]
#[repr(C)]
pub struct Optimizer {
    /// 0 = gradients are not clipped.
    pub clip_grad_norm_bits: u64,
    pub weight_decay_bits: u64,
    pub compression_decay_bits: u64,
    pub beta1_bits: u64,
    pub beta2_bits: u64,
    pub eps_bits: u64,
    /// SparseLoCo: how much of the members' mean is applied.
    pub outer_lr_bits: u64,
    /// SparseLoCo: how far an orthogonal step of a hidden matrix goes, in learning rates; 0 = by the mean itself.
    pub orthogonal_lr_bits: u64,
    pub compression_chunk: u16,
    /// Coefficients kept of a block of the token embedding and the output head; 0 = as many as `compression_topk`.
    pub compression_topk_embeddings: u16,
    pub compression_topk: u16,
    /// SparseLoCo: steps of the inner optimizer in a round.
    pub inner_steps: u16,
    /// 1 AdamW, 2 DisTrO, 3 SparseLoCo.
    pub kind: u32,
    /// DisTrO: only signs are sent.
    pub quantize_1bit: u8,
    /// SparseLoCo: bits of a value, 1 or 2.
    pub value_bits: u8,
    /// SparseLoCo: 0 AdamW, 1 Muon.
    pub inner_optimizer: u8,
    /// SparseLoCo: by what a sum of values is divided: 0 the members that kept the coefficient, 1 all results, 2 the
    /// root of both numbers' product.
    pub divisor: u8,
}

#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct DataLocation {
    pub start_index: u32,
    pub num_files: u32,
    /// 0 dummy, 1 server, 2 local, 3 one URL, 4 numbered files, 5 GCP, 6 weighted, 7 preprocessed.
    pub kind: u8,
    /// 2 or 4.
    pub token_bytes: u8,
    /// 0 none, 1 seeded.
    pub shuffle: u8,
    /// Digits of a numbered file's index.
    pub pad_zeros: u8,
    /// URL, template, path or bucket.
    pub primary: [u8; LOCATION_BYTES],
    /// Folder within a bucket.
    pub secondary: [u8; LOCATION_BYTES],
    pub shuffle_seed: [u8; 32],
}

#[derive(Clone, Copy, PartialEq, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Checkpoint {
    /// 0 none, 1 Hub, 2 local, 3 dummy.
    pub kind: u8,
    pub pad: [u8; 7],
    pub repo: [u8; REPO_BYTES],
    pub revision: [u8; REVISION_BYTES],
}

/// A checkpoint that the run can go back to.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Recorded {
    pub checkpoint: Checkpoint,
    /// Zero = unknown.
    pub hashes: [[u8; 32]; MAX_LEVELS],
    /// The first sequence that it was not trained on.
    pub data_index: u64,
    pub step: u32,
    pub pad: u32,
}

#[account]
pub struct Model {
    pub metadata: Metadata,
    pub lr_schedule: LrSchedule,
    pub optimizer: Optimizer,
    pub data_location: DataLocation,
    pub checkpoint: Checkpoint,
    /// Level hashes of the checkpoint; zero = unknown.
    pub checkpoint_hashes: [[u8; 32]; MAX_LEVELS],
    pub schema_hash: [u8; 32],
    pub client_version: [u8; CLIENT_VERSION_BYTES],
    /// FFN width of each tier, largest first.
    pub tier_widths: [u32; MAX_LEVELS],
    pub max_seq_len: u32,
    pub cold_start_warmup_steps: u32,
    pub checkpoint_step: u32,
    /// See `architecture`.
    pub architecture: u8,
    /// 0 pretraining, 1 finetuning.
    pub data_type: u8,
    /// Number of tiers; 0 = no schema set.
    pub tiers: u8,
    pub version: u8,
    /// Whose turn it was to name the checkpoint: see `rules::checkpoints`.
    pub checkpoint_turn: u8,
    pub pad: [u8; 3],
    /// The first sequence that the checkpoint was not trained on.
    pub checkpoint_data_index: u64,
    /// What the checkpoint was before, newest first; of kind 0 where there is none.
    pub earlier: [Recorded; EARLIER],
}
