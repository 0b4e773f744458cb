//! An elected witness states whose results it holds of the round that is judged, and their fingerprints.

use super::Permissionless;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{bitmap, committee, members},
    state::*,
};
use anchor_lang::prelude::*;

/// Travels in the instruction for indexers; never stored. Only `step` is looked at: it tells epochs apart.
#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct WitnessMetadata {
    pub step: u32,
    /// Loss in thousandths.
    pub loss_milli: u32,
    pub tokens_per_sec: u32,
    pub bytes_per_sec: u32,
}

pub fn witness(
    ctx: &mut Context<Permissionless>,
    (slot, height, step): (u8, u32, u32),
    participation: &Bitmap,
    fingerprints: &[u8; FINGERPRINT_BYTES],
) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    let training = matches!(run.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    require!(training, CoordinatorError::WrongState);
    let head = run.ring(0);
    let current = run.rounds[head].height == height && run.rounds[head].step == step;
    require!(current, CoordinatorError::StaleHeight);
    members::check_healthy(&accounts.members, slot, accounts.user.address())?;
    require!(committee::is_witness(&run.rounds[head], &accounts.members, slot), CoordinatorError::NotElected);
    require!(!bitmap::has(&run.rounds[head].attested, slot), CoordinatorError::DuplicateWitness);
    let stored = &mut accounts.witnesses.rounds[head];
    let count = (run.rounds[head].attestations as usize).min(MAX_WITNESSES - 1);
    let subset = match run.judged(0) {
        None => bitmap::is_empty(participation),
        Some(judged) => bitmap::is_subset(participation, &run.rounds[judged].roster),
    };
    require!(subset, CoordinatorError::BadParticipation);
    let entry = &mut stored.attestations[count];
    entry.slot = slot;
    entry.participation = *participation;
    entry.fingerprints = *fingerprints;
    run.rounds[head].attestations = (count + 1) as u8;
    bitmap::set(&mut run.rounds[head].attested, slot);
    accounts.finish()
}
