//! `Config`: the settings of a run. The main authority sets them, and `rules::validate_config` checks them.

use anchor_lang::prelude::*;
use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable, AnchorSerialize, AnchorDeserialize, IdlType)]
#[repr(C)]
pub struct Config {
    /// Seconds a warm-up may last before training starts with the healthy members.
    pub warmup_time: u64,
    /// Seconds a cooldown may last.
    pub cooldown_time: u64,
    /// Minimum seconds of a training round; 0 = no minimum: the round waits only for votes and the next seed.
    pub min_round_time: u64,
    /// Seconds after which a training round turns to its witness phase without a quorum.
    pub max_round_train_time: u64,
    /// Seconds of grace for the remaining witnesses.
    pub round_witness_time: u64,
    /// Seconds after which an epoch ends; 0 = unset.
    pub epoch_time: u64,
    /// Tokens over which the global batch grows from start to end.
    pub global_batch_size_warmup_tokens: u64,
    /// Lamports that a wallet locks as long as it is a member, and loses if it is ejected.
    pub join_bond: u64,
    /// Rounds after which an epoch ends; 0 = unset.
    pub rounds_per_epoch: u32,
    /// Steps after which the run is finished.
    pub total_steps: u32,
    /// Tokens per sequence, copied from the model. Ignored as an argument.
    pub max_seq_len: u32,
    /// Members that must wait before an epoch starts.
    pub init_min_clients: u16,
    /// Healthy members below which an epoch ends.
    pub min_clients: u16,
    /// Witnesses elected per round; 0 = every member, up to 32.
    pub witness_nodes: u8,
    /// Rounds until a round's results are attested: 0 = its own witnesses attest them, 1 = the next round's do.
    pub overlap: u8,
    /// Sequences per round at the start of the run.
    pub global_batch_size_start: u16,
    /// Sequences per round once the batch has grown.
    pub global_batch_size_end: u16,
    /// Percent of established members' recorded results that others replay, at most 4 per round. 0 = no audits.
    pub verification_percent: u8,
    /// Seconds an epoch waits for latecomers once enough members wait.
    pub waiting_for_members_extra_time: u8,
}

impl Config {
    /// Return the seconds that an epoch waits for latecomers while the holder of a level in no checkpoint is absent.
    pub fn longest_latecomer_wait(&self) -> u64 {
        u64::from(self.waiting_for_members_extra_time).saturating_add(self.warmup_time)
    }
}
