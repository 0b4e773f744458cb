//! `Witnesses`: the attestations of the stored rounds, the level attestations of a cooldown, the backlog, and the cases
//! about audited results.
//!
//! Entries at and after a count are leftovers of earlier rounds.

use crate::{constants::*, rules::bitmap};
use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

/// Which results of the judged round (`Run::judged`) one witness holds.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Attestation {
    pub seat: u8,
    /// Members whose results the witness holds.
    pub participation: [u8; 32],
    /// A fingerprint of each of these results, in bit planes. The roster takes c = 1, 2 or 4 words of 64 seats. Bit k
    /// of seat s, for k < 40 / c, is bit s % 64 of the 64-bit word k * c + s / 64. The bits are the lowest of
    /// sha256(commitment || this round's salt as 8 little-endian bytes).
    pub fingerprints: [u8; FINGERPRINT_BYTES],
}

/// The result of each seat that leads the Boyer-Moore majority vote of the running round's witnesses. If more than half
/// of them recorded the same result, it is this one.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Leading {
    pub participation: [u8; 32],
    pub fingerprints: [u8; FINGERPRINT_BYTES],
    /// The vote's margin of each seat, in bit planes, lowest bit first.
    pub margins: [[u8; 32]; VOTE_PLANES],
}

/// The attestations of one round; their count is in the round's header.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct WitnessRound {
    pub attestations: [Attestation; MAX_WITNESSES],
}

/// Sequences that nobody trained and that later rounds take first.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C, packed(4))]
pub struct Interval {
    pub start: u64,
    pub len: u32,
}

/// The intervals of untrained sequences, ascending. No interval touches the next.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Backlog {
    pub intervals: [Interval; BACKLOG],
    pub count: u64,
}

/// A disputed result: its auditor replayed it and found a mismatch.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Case {
    /// Seed of the result's round.
    pub seed: u64,
    /// The sequences of the result, which are trained again if the target is convicted. Unused entries are empty.
    pub intervals: [Interval; PIECES],
    /// Number of the result's round in its epoch.
    pub height: u32,
    /// Number of the round in which the case was opened.
    pub opened: u32,
    /// The member that delivered the result. Ejected by mismatches from two thirds of the jury.
    pub target: u8,
    /// The member that opened the case. Ejected by as many matches.
    pub auditor: u8,
    pub pad: [u8; 2],
    /// Jurors that have voted. Empty like `not_matching` once the case is decided.
    pub voted: [u8; 32],
    /// Jurors that did not vote for a match: they found a mismatch, or have not voted.
    pub not_matching: [u8; 32],
}

impl Case {
    pub fn is_decided(&self) -> bool {
        bitmap::is_empty(&self.not_matching) && bitmap::is_empty(&self.voted)
    }

    pub fn jury(&self) -> Bitmap {
        bitmap::either(&self.voted, &self.not_matching)
    }

    pub fn mismatches(&self) -> Bitmap {
        bitmap::both(&self.voted, &self.not_matching)
    }

    pub fn matches(&self) -> Bitmap {
        bitmap::without(&self.voted, &self.not_matching)
    }
}

/// The cases of the running epoch, in any order. Some may be decided or expired.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Cases {
    pub entries: [Case; MAX_CASES],
    pub count: u64,
}

#[account]
pub struct Witnesses {
    pub rounds: [WitnessRound; STORED_ROUNDS],
    pub leading: Leading,
    pub backlog: Backlog,
    pub cases: Cases,
    /// The hashes that the committee of each level stated in the cooldown, by position; zero = none yet.
    pub cooldown: [[[u8; 32]; MAX_WITNESSES]; MAX_LEVELS],
}
