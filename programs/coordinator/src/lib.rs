//! Coordinator: the program that keeps the clock, the member list, the random seeds and the votes of training runs.
//!
//! This file has only thin entry points. `state` has the accounts, `instructions` one file per instruction, and `rules`
//! all decisions.
#![cfg_attr(target_os = "solana", no_std)]
extern crate alloc;

use alloc::{string::String, vec::Vec};
use anchor_lang::prelude::*;

pub mod constants;
pub mod errors;
pub mod instructions;
pub mod rules;
pub mod runtime;
pub mod state;

use instructions::*;
use state::{JoinParams, RoundId};

declare_id!("HMjsnPiE6dEPfEwdkiY9Tsb9AwJ1MkzDzgdDL2nKsv1M");

#[program]
pub mod coordinator {
    use super::*;

    /// Creates the four accounts of a run. Call `grow` for members and witnesses afterwards. `run_id` has 1 to 32 bytes
    /// of UTF-8, `client_version` at most 96; if it is empty, every version may join.
    pub fn init_run(
        ctx: &mut Context<InitRun>,
        run_id: String,
        main_authority: Address,
        join_authority: Address,
        client_version: String,
    ) -> Result<()> {
        let authorities = Authorities { main: main_authority, join: join_authority };
        instructions::init_run(ctx, &run_id, &authorities, &client_version)
    }

    /// Adds up to 10,240 bytes to the account of the members (`which` 0) or of the witnesses (1).
    pub fn grow(ctx: &mut Context<Grow>, which: u8) -> Result<()> {
        instructions::grow(ctx, which)
    }

    /// Changes a halted run. Parts that are None stay as they are.
    pub fn update(ctx: &mut Context<OwnerModel>, params: UpdateParams) -> Result<()> {
        instructions::update(ctx, &params)
    }

    /// Writes bytes of a halted run's training spec, from byte `offset` on. The run has no spec until `update` names
    /// its hash.
    pub fn write_spec(ctx: &mut Context<OwnerModel>, offset: u16, part: Vec<u8>) -> Result<()> {
        instructions::write_spec(ctx, offset, &part)
    }

    /// Pauses (after the running epoch) or starts, resumes and reopens the run.
    pub fn set_paused(ctx: &mut Context<OwnerOnly>, paused: bool) -> Result<()> {
        instructions::set_paused(ctx, paused)
    }

    /// Takes a halted run back to a recorded checkpoint: `index` 0 is the current one, 1 to 3 the earlier ones, newest
    /// first. `step` must be the step of that checkpoint.
    pub fn rewind(ctx: &mut Context<OwnerModel>, index: u8, step: u32) -> Result<()> {
        instructions::rewind(ctx, index, step)
    }

    /// Takes a wallet out of the next epoch. If `barred`, the wallet may not join again; otherwise a bar is lifted.
    pub fn kick(ctx: &mut Context<Kick>, wallet: Address, barred: bool) -> Result<()> {
        instructions::kick(ctx, &wallet, barred)
    }

    /// Names the only client version that may join, at most 96 bytes of UTF-8. Empty = any version.
    pub fn update_client_version(ctx: &mut Context<OwnerModel>, client_version: String) -> Result<()> {
        instructions::update_client_version(ctx, &client_version)
    }

    /// Sets the points of the epochs that start from now on: `earning` is shared equally by the members that finish an
    /// epoch, and each ejected member loses `slashing`. None keeps a rate.
    pub fn set_future_epoch_rates(
        ctx: &mut Context<OwnerOnly>,
        earning: Option<u64>,
        slashing: Option<u64>,
    ) -> Result<()> {
        instructions::set_future_epoch_rates(ctx, earning, slashing)
    }

    /// Closes all four accounts of a halted run and returns their rent.
    pub fn close_run(ctx: &mut Context<CloseRun>) -> Result<()> {
        instructions::close_run(ctx)
    }

    /// Pays the rent of a membership and the run's bond, which must be at most `max_bond` lamports.
    pub fn enroll(ctx: &mut Context<Enroll>, max_bond: u64) -> Result<()> {
        instructions::enroll(ctx, max_bond)
    }

    /// Ends a membership: its bond and rent come back, unless the bond is forfeited.
    pub fn withdraw(ctx: &mut Context<Withdraw>) -> Result<()> {
        instructions::withdraw(ctx)
    }

    /// Copies the record of a member's seat into its membership, and destroys a forfeited bond.
    pub fn settle(ctx: &mut Context<Settle>) -> Result<()> {
        instructions::settle(ctx)
    }

    /// Asks for a seat in the next epoch.
    pub fn join_run(ctx: &mut Context<JoinRun>, params: JoinParams) -> Result<()> {
        instructions::join_run(ctx, &params)
    }

    /// Leaves the running epoch and gives up the seat in the next one. `at` names any round that the run stores.
    pub fn leave_run(ctx: &mut Context<Permissionless>, at: RoundId) -> Result<()> {
        instructions::leave_run(ctx, &at)
    }

    /// Performs the transition that is due.
    pub fn tick(ctx: &mut Context<Permissionless>) -> Result<()> {
        instructions::tick(ctx)
    }

    /// The elected witness in seat `seat` reports that it has the model. `at` names the warm-up: height 0.
    pub fn warmup_witness(ctx: &mut Context<Permissionless>, seat: u8, at: RoundId) -> Result<()> {
        instructions::warmup_witness(ctx, seat, &at)
    }

    /// The elected witness in seat `seat` of the running round `at` states whose results of the judged round it holds.
    /// Bit s of `participation` stands for seat s. `Attestation` describes `fingerprints`.
    pub fn witness(
        ctx: &mut Context<Permissionless>,
        seat: u8,
        at: RoundId,
        participation: [u8; 32],
        fingerprints: [u8; 320],
        metadata: WitnessMetadata,
    ) -> Result<()> {
        let _ = metadata; // for indexers
        instructions::witness(ctx, seat, &at, &participation, &fingerprints)
    }

    /// The member in seat `seat` votes on whether the result of seat `target` in round `at` matches the member's own
    /// replay. The mismatch of the drawn auditor opens a case; then the jury votes.
    pub fn verify(ctx: &mut Context<Permissionless>, seat: u8, at: RoundId, target: u8, mismatch: bool) -> Result<()> {
        instructions::verify(ctx, seat, &at, target, mismatch)
    }

    /// Ejects a member that signed two different results of one share; an Ed25519 instruction before it checks both.
    pub fn prove_equivocation(ctx: &mut Context<ProveEquivocation>) -> Result<()> {
        instructions::prove_equivocation(ctx)
    }

    /// The elected member in seat `seat` states the hashes of the levels that it holds after the last round, `at`. Bit l
    /// of `mask` stands for level l; `hashes` has the SHA-256 of each named level, ascending.
    pub fn attest(
        ctx: &mut Context<Permissionless>,
        seat: u8,
        at: RoundId,
        mask: u8,
        hashes: Vec<[u8; 32]>,
    ) -> Result<()> {
        instructions::attest(ctx, seat, &at, mask, &hashes)
    }

    /// Drops members whose results the witnesses did not receive. Bit s of `dropped` stands for seat s.
    pub fn health_check(ctx: &mut Context<Permissionless>, dropped: [u8; 32]) -> Result<()> {
        instructions::health_check(ctx, &dropped)
    }

    /// Names a durable checkpoint that carries the attested hashes.
    pub fn checkpoint(ctx: &mut Context<PermissionlessModel>, params: CheckpointParams) -> Result<()> {
        instructions::checkpoint(ctx, params)
    }

    /// Returns, as return data, the order of a stored round's witnesses (`which` 0), the auditors of its results (1), its
    /// data intervals (2) or the elected witnesses (3). `ring` is the round's index in `Run::rounds`, 0 to 3.
    pub fn inspect(ctx: &mut Context<Inspect>, which: u8, ring: u8) -> Result<()> {
        instructions::inspect(ctx, which, ring)
    }
}
