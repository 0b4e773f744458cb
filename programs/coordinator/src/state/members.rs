//! `Members`: one seat for each of up to 256 wallets. A seat index identifies a member throughout an epoch.

use crate::constants::*;
use alloc::string::String;
use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

/// Values of `Seat::pending`.
pub mod pending {
    pub const NONE: u8 = 0;
    /// Waits for the next epoch.
    pub const WAITS: u8 = 1;
    /// An authority removed the member from the next epoch. It may join again.
    pub const REMOVED: u8 = 2;
    /// The member is barred. The membership decides this; the seat shows it to others.
    pub const BARRED: u8 = 3;
}

/// Values of `Seat::state`.
pub mod member_state {
    /// Not in the running epoch.
    pub const IDLE: u8 = 0;
    pub const HEALTHY: u8 = 1;
    /// Taken out because its results or levels were missing (`rules::drops`).
    pub const DROPPED: u8 = 2;
    /// Left by itself.
    pub const WITHDRAWN: u8 = 3;
    /// Lost a case about an audited result (`rules::cases`), or signed two results for one share.
    pub const EJECTED: u8 = 4;
    /// Left by itself in the warm-up, before it owed a result. Its share of round 0 stays untrained.
    pub const LEFT_EARLY: u8 = 5;
    /// Joined again without a replica during the rounds: it restarted, or could not get an attested result.
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
    /// Weight of its share in the running epoch; between epochs, the highest weight that it may have in the next. 0 for
    /// a newcomer.
    pub weight: u16,
    /// Declared throughput in sequences per minute, at least 1; 0 where the owner has withdrawn.
    pub declared: u16,
    pub tier: u8,
    pub state: u8,
    /// See the module `pending`.
    pub pending: u8,
    /// 1 = the seat has an owner, or had one that has withdrawn: used seats come first.
    pub used: u8,
}

/// What the run knew of its model before a provisional epoch.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct ModelBefore {
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

/// What a wallet declares when it asks for a seat.
#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct JoinParams {
    /// Ed25519 public key of the peer-to-peer endpoint.
    pub p2p: [u8; 32],
    /// 0 = the whole model.
    pub tier: u8,
    /// Throughput in sequences per minute, at least 1.
    pub weight: u16,
    /// SHA-256 of the state schema.
    pub schema_hash: [u8; 32],
    /// Must equal the run's, unless that is empty.
    pub client_version: String,
    /// The member has no replica of the run: it is new, or was restarted.
    pub stateless: bool,
}

#[account]
pub struct Members {
    /// Epoch of the last roster.
    pub epoch: u32,
    /// Rounds of the running epoch that made a step, up to 4,095.
    pub judged: u32,
    /// In how many of these a seat delivered all it owed: bit i of the count is in the bitmap i.
    pub delivered: [[u8; 32]; COUNT_BITS],
    /// Seats that delivered a result in the epoch; members that have gone must have delivered in half of the rounds. In
    /// a cooldown: seats that may attest the levels of their tiers.
    pub proven: [u8; 32],
    /// The level score of each seat, in bit planes: 64 (63 for newcomers next to established members), plus the judged
    /// rounds in which it delivered every level of its tier, minus those in which it did not. The score is limited to 0
    /// to 127. A score that reaches 0 stays 0. Bit i of the score is in bitmap i.
    pub shown: [[u8; 32]; SHOWN_BITS],
    /// Seats that showed every level of their tier in an earlier epoch, and in at least half of the judged rounds
    /// since.
    pub established: [u8; 32],
    /// Established members that began the epoch. They judge which levels were delivered. The set stays the same to the
    /// end of the epoch, even if members leave or are ejected, because members read it at different moments before they
    /// apply results.
    pub judges: [u8; 32],
    /// Seats of healthy members.
    pub healthy: [u8; 32],
    /// Seats of ejected members whose bonds are not yet marked as forfeited in their memberships.
    pub forfeited: [u8; 32],
    pub before: ModelBefore,
    pub seats: [Seat; MAX_MEMBERS],
}
