//! `Members`: one slot for each of up to 256 wallets. A seat index identifies a member throughout an epoch.

use crate::constants::*;
use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

/// Values of `Seat::pending`.
pub mod wish {
    pub const NONE: u8 = 0;
    /// Wants to be in the next epoch.
    pub const WAITS: u8 = 1;
    /// Was taken out of the line by an authority; may ask again.
    pub const REMOVED: u8 = 2;
    /// May not ask: the membership says so, and this is what others see of it.
    pub const BARRED: u8 = 3;
}

/// Values of `Seat::state`.
pub mod member_state {
    /// Not in the running epoch.
    pub const IDLE: u8 = 0;
    pub const HEALTHY: u8 = 1;
    /// Found missing by the witnesses.
    pub const DROPPED: u8 = 2;
    /// Left by itself.
    pub const WITHDRAWN: u8 = 3;
    /// Convicted by the verifiers, or of two results.
    pub const EJECTED: u8 = 4;
    /// Left by itself in the warm-up, before there was anything to deliver; its share of round 0 stays undone.
    pub const LEFT_EARLY: u8 = 5;
    /// Joined again without a replica in the rounds: it restarted, or could not get what was attested.
    pub const RESTARTED: u8 = 6;
}

#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Seat {
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
    /// What its share is measured by in the running epoch; between epochs, the most that it may be in the next one. 0 of
    /// a newcomer.
    pub weight: u16,
    /// Declared throughput in sequences per minute, at least 1; 0 where the owner has withdrawn.
    pub declared: u16,
    pub tier: u8,
    pub state: u8,
    /// See `wish`.
    pub pending: u8,
    /// 1 = the seat has an owner, or had one that has withdrawn: used seats come first.
    pub used: u8,
}

/// What the run knew of its model before an epoch that may be undone.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Source {
    pub level_hashes: [[u8; 32]; MAX_LEVELS],
    pub attested_data_index: u64,
    /// The first sequence that was not trained on.
    pub data_index: u64,
    pub attested_step: u32,
    pub levels_attested: u8,
    pub model_source: u8,
    pub levels_lost: u8,
    /// 1 = the run goes back to this unless the epoch stands (`provisional::confirm`).
    pub kept: u8,
}

#[account]
pub struct Members {
    /// Epoch of the last roster.
    pub epoch: u32,
    /// Rounds of the running epoch that made a step, up to 4,095.
    pub judged: u32,
    /// In how many of these a seat delivered all it owed: bit i of the count is in the bitmap i.
    pub delivered: [[u8; 32]; COUNT_BITS],
    /// Seats that delivered anything that they owed; of those who have gone, the ones that did so in half of the rounds. In
    /// cooldown: whose word counts about the levels of its tier.
    pub proven: [u8; 32],
    /// Of the rounds in which the holders of all its levels judged a seat: by how many more it delivered every level than
    /// not, plus 64, and not below 0, where it stays, nor above 127. Bit i is in the bitmap i.
    pub shown: [[u8; 32]; SHOWN_BITS],
    /// Seats that delivered every level of their tier in an epoch before, and not less than half since.
    pub established: [u8; 32],
    /// Those of them with whom the epoch began: who judges deliveries of levels. The same to its end, although some may have gone or
    /// were convicted by then, because members apply its results at different moments and read this before.
    pub judges: [u8; 32],
    /// Seats of healthy members.
    pub healthy: [u8; 32],
    /// Seats of ejected members whose bonds are not yet marked as forfeited in their memberships.
    pub forfeited: [u8; 32],
    pub before: Source,
    pub seats: [Seat; MAX_MEMBERS],
}
