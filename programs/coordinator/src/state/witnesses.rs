//! `Witnesses`: the attestations and verdicts of the stored rounds, the level attestations of a cooldown, the backlog.
//!
//! Entries at and beyond a count are leftovers of earlier rounds.

use crate::constants::*;
use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

/// What one witness of a round holds of the round that it judges (`Run::judged`).
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Attestation {
    pub seat: u8,
    /// Members whose results the witness holds.
    pub participation: [u8; 32],
    /// A fingerprint of each of these results, in bit planes: with c = 1, 2 or 4 words of 64 seats, as many as hold the
    /// roster, bit k of seat s, for k < 40 / c, is bit s % 64 of the 64-bit word k * c + s / 64. The bits are the lowest
    /// of sha256(commitment || this round's seed as 8 little-endian bytes).
    pub fingerprints: [u8; FINGERPRINT_BYTES],
}

/// What most witnesses of the running round recorded about each seat, by the majority vote of Boyer and Moore: whatever
/// more than half of them agree on is here.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Leading {
    pub participation: [u8; 32],
    pub fingerprints: [u8; FINGERPRINT_BYTES],
    /// How far ahead each seat's entry is, in bit planes, lowest first.
    pub margins: [[u8; 32]; VOTE_PLANES],
}

/// One verifier's finding about one trainer.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Verdict {
    pub verifier: u8,
    pub target: u8,
    pub mismatch: u8,
}

/// The attestations of one round; their count is in the round's header.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct WitnessRound {
    pub attestations: [Attestation; MAX_WITNESSES],
    pub verdicts: [Verdict; MAX_VERDICTS],
    pub verdict_count: u8,
    pub pad: [u8; 7],
}

/// Sequences that nobody trained and that later rounds take first.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C, packed(4))]
pub struct Interval {
    pub start: u64,
    pub len: u32,
}

/// Ascending, none touches the next.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Backlog {
    pub intervals: [Interval; BACKLOG],
    pub count: u64,
}

#[account]
pub struct Witnesses {
    pub rounds: [WitnessRound; STORED_ROUNDS],
    pub leading: Leading,
    pub backlog: Backlog,
    /// What the committee of each level states at cooldown, by the place in it; zero = nothing yet.
    pub cooldown: [[[u8; 32]; MAX_WITNESSES]; MAX_LEVELS],
}
