//! `Members`: one slot for each of up to 256 wallets. A slot index identifies a member throughout an epoch.

use crate::constants::*;
use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

/// Values of `Slot::state`.
pub mod member_state {
    /// Not in the running epoch.
    pub const IDLE: u8 = 0;
    pub const HEALTHY: u8 = 1;
    /// Found missing by the witnesses.
    pub const DROPPED: u8 = 2;
    /// Left by itself.
    pub const WITHDRAWN: u8 = 3;
    /// Convicted by the verifiers.
    pub const EJECTED: u8 = 4;
}

#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Slot {
    pub signer: Address,
    /// Key of the peer-to-peer endpoint.
    pub p2p: [u8; 32],
    pub points: u64,
    /// Points taken away so far.
    pub slashed: u64,
    /// Last epoch the member was part of.
    pub last_epoch: u32,
    /// Round in which the member stopped being healthy.
    pub exited_height: u32,
    /// Declared throughput in sequences per minute, at least 1.
    pub weight: u16,
    pub tier: u8,
    pub state: u8,
    /// 1 = wants to be in the next epoch.
    pub pending: u8,
    /// 1 = the slot has an owner.
    pub used: u8,
    pub pad: [u8; 2],
}

#[account]
pub struct Members {
    /// Points of members whose slots went to others.
    pub retired_points: u64,
    /// Epoch of the last roster.
    pub epoch: u32,
    pub pad: u32,
    pub slots: [Slot; MAX_MEMBERS],
}
