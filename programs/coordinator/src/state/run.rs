//! `Run`: what changes at every transition, and the only account a client subscribes to.

use crate::{constants::*, state::Config};
use anchor_lang::{create_program_address, prelude::*};
use bytemuck::{Pod, Zeroable};

/// Values of `Run::state`.
pub mod run_state {
    pub const UNINITIALIZED: u8 = 0;
    pub const WAITING_FOR_MEMBERS: u8 = 1;
    pub const WARMUP: u8 = 2;
    pub const ROUND_TRAIN: u8 = 3;
    pub const ROUND_WITNESS: u8 = 4;
    pub const COOLDOWN: u8 = 5;
    pub const FINISHED: u8 = 6;
    pub const PAUSED: u8 = 7;
}

/// Values of `Run::model_source`.
pub mod model_source {
    /// Members load the checkpoint named in `Model`.
    pub const DURABLE: u8 = 0;
    /// Members load the attested levels from each other.
    pub const PEERS: u8 = 1;
}

/// Values of `Run::exit_reason`: why the rounds of the running or last epoch ended.
pub mod exit_reason {
    pub const NONE: u8 = 0;
    /// A round closed with fewer attestations than its quorum.
    pub const QUORUM_MISSING: u8 = 1;
    /// Fewer healthy members than `min_clients`.
    pub const TOO_FEW_CLIENTS: u8 = 2;
    pub const TOTAL_STEPS: u8 = 3;
    pub const ROUNDS_PER_EPOCH: u8 = 4;
    pub const EPOCH_TIME: u8 = 5;
    pub const PAUSE: u8 = 6;
    /// A round closed without a single attestation.
    pub const NO_ATTESTATION: u8 = 7;
}

/// Values of `Round::established`: what only the established members do.
pub mod established_only {
    /// Nothing.
    pub const NOTHING: u8 = 0;
    /// They witness.
    pub const WITNESS: u8 = 1;
    /// They witness and train, because the backlog is large and the round has newcomers.
    pub const TRAIN: u8 = 2;
}

/// Header of one round.
#[derive(Clone, Copy, Pod, Zeroable, IdlType)]
#[repr(C)]
pub struct Round {
    /// Seed of every committee and assignment of the round.
    pub seed: u64,
    /// Random number that is mixed into the fingerprints of the results attested in this round. Nobody knew it before.
    pub salt: u64,
    /// First fresh sequence.
    pub data_index: u64,
    /// First sequences of the intervals that are trained again.
    pub redo_index: [u64; REDO],
    /// Counts the rounds of the epoch from 0.
    pub height: u32,
    /// The step that this round makes if all rounds before it make theirs.
    pub step: u32,
    /// Length of each interval that is trained again. They come first in the batch.
    pub redo: [u16; REDO],
    /// Sequences in total; 0 in a drain round.
    pub batch: u16,
    /// Number of members of the round.
    pub clients: u16,
    /// Number of elected witnesses.
    pub elected: u8,
    /// Attestations received.
    pub attestations: u8,
    /// Members of the round. Fixed when the previous round began, so it contains members that have left since.
    pub roster: [u8; 32],
    /// Warm-up: members that reported ready. Running round: members that attested. Closed round: members of the judged
    /// round whose results a quorum recorded, and members that owed none.
    pub attested: [u8; 32],
    /// Closed round: 1 = the results that its witnesses attested made a step.
    pub made_step: u8,
    /// See `established_only`.
    pub established: u8,
}

impl Round {
    /// Return how many sequences of the batch are assigned for the first time.
    pub fn fresh(&self) -> u16 {
        self.redo.iter().fold(self.batch, |left, again| left.saturating_sub(*again))
    }
}

/// Identifies the round that a vote is about. Each attempt at an epoch has a different seed.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct RoundId {
    pub epoch: u32,
    /// Number of the round in its epoch, from 0.
    pub height: u32,
    /// `Round::seed`.
    pub seed: u64,
}

#[account]
pub struct Run {
    /// Rises by one at every change of any of the four accounts.
    pub seq: u64,
    pub state_started_at: u64,
    /// When the state began or, while the run waits, when enough members waited. Absent members that the run needs have
    /// a day from then.
    pub waiting_since: u64,
    /// 0 before the first epoch, and after a rewind.
    pub epoch_started_at: u64,
    /// Next fresh sequence.
    pub data_index: u64,
    /// Number of untrained sequences that wait to be trained again. `Witnesses::backlog` lists them.
    pub backlog: u64,
    /// Sequences lost because the backlog was full. Always 0.
    pub lost_sequences: u64,
    /// The first sequence that the model of `level_hashes` was not trained on.
    pub attested_data_index: u64,
    /// Slot from whose hash the next seed is drawn: the warm-up's in a warm-up, else the next round's. 0 once it is
    /// drawn.
    pub seed_slot: u64,
    /// Seed of the next round, as soon as it is drawn.
    pub next_seed: u64,
    /// The slot in which the run was created. Distinguishes it from earlier runs with the same id.
    pub created: u64,
    pub earning_rate: u64,
    pub slashing_rate: u64,
    pub future_earning_rate: u64,
    pub future_slashing_rate: u64,
    pub config: Config,
    pub rounds: [Round; STORED_ROUNDS],
    pub model_seq: u32,
    pub members_seq: u32,
    pub epoch: u32,
    /// The step that comes next; first = 1. A round makes a step if a quorum attests a result of it.
    pub step: u32,
    pub start_step: u32,
    /// Step that `level_hashes` describe.
    pub attested_step: u32,
    pub main_authority: Address,
    pub join_authority: Address,
    pub run_id: [u8; RUN_ID_BYTES],
    /// Members that began the epoch. All orders shuffle these, so that a member that leaves moves no other.
    pub began: [u8; 32],
    /// Members of the next round.
    pub next_roster: [u8; 32],
    /// Members that finished the last epoch and so hold the model.
    pub finishers: [u8; 32],
    pub level_hashes: [[u8; 32]; MAX_LEVELS],
    /// PDA bumps of run, model, members and witnesses.
    pub bumps: [u8; 4],
    pub version: u8,
    pub state: u8,
    pub pending_pause: u8,
    pub cold_start: u8,
    pub model_source: u8,
    pub exit_reason: u8,
    /// Number of drain rounds left, including the current one.
    pub draining: u8,
    /// Ring index of the current round.
    pub head: u8,
    pub levels: u8,
    /// Bit l: `level_hashes[l]` is attested.
    pub levels_attested: u8,
    /// Bit l: level l went back to an older durable checkpoint. Nobody held it when the running epoch began, or half of
    /// its committee had gone when the last epoch ended.
    pub levels_lost: u8,
    /// Bit l: the running epoch began with established holders of level l, and only these judge its deliveries.
    pub levels_established: u8,
}

impl Run {
    #[inline(never)]
    pub fn enter(&mut self, state: u8, now: u64) {
        self.state = state;
        self.state_started_at = now;
        self.waiting_since = now;
    }

    /// Return the run id without its zero padding: the variable seed of the four addresses.
    pub fn seed(&self) -> &[u8] {
        let length = self.run_id.iter().position(|byte| *byte == 0).unwrap_or(RUN_ID_BYTES);
        &self.run_id[..length]
    }

    /// Return the address of one of the run's four accounts.
    ///
    /// The instructions compare with it by `address =`, because Anchor generates the code of `seeds =` again for every
    /// account of every instruction. That was a quarter of the program.
    #[inline(never)]
    pub fn address_of(&self, seed: &[u8], index: usize) -> Address {
        let seeds = [seed, self.seed(), &[self.bumps[index]]];
        match create_program_address(&seeds, &crate::ID) {
            Ok(address) => address,
            Err(_) => panic!(), // init_run found an address with this bump
        }
    }

    /// Return whether the run is new, finished or paused.
    pub fn halted(&self) -> bool {
        matches!(self.state, run_state::UNINITIALIZED | run_state::FINISHED | run_state::PAUSED)
    }

    /// Return whether an epoch trains or cools down.
    pub fn active(&self) -> bool {
        matches!(self.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS | run_state::COOLDOWN)
    }

    /// Return the ring index of the round `back` rounds before the current one (`back` at most 3).
    pub fn ring(&self, back: usize) -> usize {
        (self.head as usize + STORED_ROUNDS - back) % STORED_ROUNDS
    }

    /// Return the ring index of the round that is judged by the round `back` rounds before the current one (`back` at
    /// most 2). A round judges itself or, with overlap, the round before it. Return None if the epoch had no such
    /// round.
    pub fn judged(&self, back: usize) -> Option<usize> {
        let back = back + usize::from(self.config.overlap);
        (back <= self.current().height as usize).then(|| self.ring(back))
    }

    pub fn current(&self) -> &Round {
        &self.rounds[self.ring(0)]
    }

    /// Return whether results of the epoch are audited. An epoch in which everyone witnesses has no audits, because
    /// newcomers could convict established members.
    pub fn is_audited(&self) -> bool {
        self.config.verification_percent > 0 && self.current().established != established_only::NOTHING
    }

    /// Return whether `id` names the round `back` rounds before the current one (`back` at most 3).
    pub fn is_at(&self, id: &RoundId, back: usize) -> bool {
        let round = &self.rounds[self.ring(back)];
        let exists = back <= self.current().height as usize;
        exists && self.epoch == id.epoch && round.height == id.height && round.seed == id.seed
    }

    /// Return the height of the first round that a member misses if it stops now: in a cooldown, the one after the
    /// last.
    pub fn exit_height(&self) -> u32 {
        self.current().height.saturating_add(u32::from(self.state == run_state::COOLDOWN))
    }
}
