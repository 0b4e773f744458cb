//! `Witnesses`: the attestations and verdicts of the stored rounds and the level attestations of a cooldown.
//!
//! Entries at and beyond a count are leftovers of earlier rounds.

use crate::constants::*;
use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

/// What one witness of a round holds of the round that it judges (`Run::judged`).
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Attestation {
    pub slot: u8,
    pub pad: [u8; 7],
    /// Members whose results the witness holds.
    pub participation: [u8; 32],
    /// b = min(64, 2560 / clients) low bits of sha256(commitment || this round's seed as 8 little-endian bytes), at bit
    /// rank * b, lowest bit first.
    pub fingerprints: [u8; FINGERPRINT_BYTES],
}

/// One verifier's finding about one trainer.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Verdict {
    pub verifier: u8,
    pub target: u8,
    pub mismatch: u8,
    pub pad: u8,
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

/// Level hashes that one elected member states at cooldown.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct LevelAttestation {
    pub slot: u8,
    /// Bit l: `hashes[l]` is stated.
    pub mask: u8,
    pub pad: [u8; 6],
    pub hashes: [[u8; 32]; MAX_LEVELS],
}

#[account]
pub struct Witnesses {
    pub rounds: [WitnessRound; STORED_ROUNDS],
    pub cooldown: [LevelAttestation; MAX_WITNESSES],
    pub cooldown_count: u8,
    pub pad: [u8; 7],
}
