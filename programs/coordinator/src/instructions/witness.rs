//! An elected witness states which members' results of the judged round it holds, and their fingerprints.

use super::Permissionless;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{agreement, bitmap, committee, level_holders, members, sequence},
    state::*,
};
use anchor_lang::prelude::*;

/// Figures for indexers. The program neither stores nor reads them.
#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct WitnessMetadata {
    /// The step that the running round makes.
    pub step: u32,
    /// The witness's training loss in thousandths of a nat per token; 0 or `u32::MAX` = unknown.
    pub loss_milli: u32,
    /// Tokens per second that the witness trained.
    pub tokens_per_sec: u32,
    /// Bytes per second that the witness sent to its peers.
    pub bytes_per_sec: u32,
}

pub fn witness(
    ctx: &mut Context<Permissionless>,
    seat: u8,
    at: &RoundId,
    participation: &Bitmap,
    fingerprints: &[u8; FINGERPRINT_BYTES],
) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    let training = matches!(run.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    require!(training, CoordinatorError::WrongState);
    let head = run.ring(0);
    require!(run.is_at(at, 0), CoordinatorError::StaleHeight);
    members::check_healthy(&accounts.members, seat, accounts.user.address())?;
    require!(committee::is_witness(run, &accounts.members, &run.rounds[head], seat), CoordinatorError::NotElected);
    require!(!bitmap::has(&run.rounds[head].attested, seat), CoordinatorError::DuplicateWitness);
    let witnesses: &mut Witnesses = &mut accounts.witnesses;
    let count = (run.rounds[head].attestations as usize).min(MAX_WITNESSES - 1);
    let roster = run.judged(0).map_or([0; 32], |judged| run.rounds[judged].roster);
    require!(bitmap::is_subset(participation, &roster), CoordinatorError::BadParticipation);
    if count == 0 {
        // Score the closed round before this vote overwrites its leading results.
        let incomplete_before = level_holders::often_incomplete(&accounts.members);
        level_holders::judge(run, &mut accounts.members, witnesses);
        if level_holders::often_incomplete(&accounts.members) != incomplete_before {
            sequence::bump(&mut run.members_seq); // clients compute from `Members` which members may be dropped
        }
    }
    let entry = &mut witnesses.rounds[head].attestations[count];
    entry.seat = seat;
    entry.participation = *participation;
    entry.fingerprints = *fingerprints;
    agreement::vote(&mut witnesses.leading, entry, agreement::columns(&roster), count == 0);
    run.rounds[head].attestations = (count + 1) as u8;
    bitmap::set(&mut run.rounds[head].attested, seat);
    accounts.finish()
}
