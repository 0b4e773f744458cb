//! `Model`: what is trained, on what data and how. Only the owner's instructions and `checkpoint` change it.

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

#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Metadata {
    pub num_parameters: u64,
    pub vocab_size: u64,
    pub name: [u8; NAME_BYTES],
    pub description: [u8; DESCRIPTION_BYTES],
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

/// Identifies the training spec that `write_spec` has written.
#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct SpecParams {
    /// Bytes of the spec, 1 to 4,096.
    pub len: u16,
    /// SHA-256 of the spec.
    pub hash: [u8; 32],
}

#[account]
pub struct Model {
    pub metadata: Metadata,
    pub checkpoint: Checkpoint,
    /// Level hashes of the checkpoint; zero = unknown.
    pub checkpoint_hashes: [[u8; 32]; MAX_LEVELS],
    pub schema_hash: [u8; 32],
    /// SHA-256 of the first `spec_len` bytes of `spec`; zero while there is none, or another one is being written.
    pub spec_hash: [u8; 32],
    pub client_version: [u8; CLIENT_VERSION_BYTES],
    /// FFN width of each tier, largest first.
    pub tier_widths: [u32; MAX_LEVELS],
    pub max_seq_len: u32,
    pub cold_start_warmup_steps: u32,
    pub checkpoint_step: u32,
    pub spec_len: u16,
    /// Number of tiers; 0 = no schema set.
    pub tiers: u8,
    pub version: u8,
    /// Turn of the member that named the checkpoint (`rules::checkpoints`).
    pub checkpoint_turn: u8,
    pub pad: [u8; 7],
    /// The first sequence that the checkpoint was not trained on.
    pub checkpoint_data_index: u64,
    /// Earlier checkpoints, newest first. Unused entries have kind 0.
    pub earlier: [Recorded; EARLIER],
    /// What is trained, on what data and how: canonical JSON. Clients read it; the program checks its length and its
    /// hash only.
    pub spec: [u8; SPEC_BYTES],
}
