//! Names a durable checkpoint: its hashes must be those that the members attested.

use super::{read_checkpoint, CheckpointSource, PermissionlessModel};
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{bitmap, checkpoints, levels, members, provisional, sequence, Machine, Moment},
    state::*,
};
use alloc::{string::String, vec::Vec};
use anchor_lang::prelude::*;

#[derive(AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct CheckpointParams {
    pub kind: u8,
    pub repo: String,
    pub revision: String,
    /// One per level, ascending.
    pub hashes: Vec<[u8; 32]>,
}

pub fn checkpoint(ctx: &mut Context<PermissionlessModel>, params: CheckpointParams) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    let model: &mut Model = &mut accounts.model;
    require!(run.state != run_state::UNINITIALIZED, CoordinatorError::WrongState);
    let turn = check_sender(run, &accounts.members, accounts.user.address())?;
    check_hashes(run, &params.hashes)?;
    // an epoch that may be undone has no checkpoint, but the one before it may still be named
    require!(!provisional::is_provisional(run, &accounts.members), CoordinatorError::CheckpointMismatch);
    let owner = *accounts.user.address() == run.main_authority;
    // the owner may correct what a member named, and a member whose turn is before the other's
    let same = run.attested_step == model.checkpoint_step && (owner || turn < model.checkpoint_turn);
    let newer = run.attested_step > model.checkpoint_step || same;
    require!(newer, CoordinatorError::CheckpointNotNewer);
    let CheckpointParams { kind, repo, revision, .. } = params;
    let allowed = match kind {
        checkpoint_kind::LOCAL => owner || may_be_directory(run, model),
        _ => kind != checkpoint_kind::DUMMY,
    };
    require!(allowed, CoordinatorError::CheckpointPlaceRefused);
    let checkpoint = read_checkpoint(&CheckpointSource { kind, repo, revision })?;
    let (hashes, data_index, step) = (run.level_hashes, run.attested_data_index, run.attested_step);
    model.checkpoint_turn = turn;
    checkpoints::replace(model, &Recorded { checkpoint, hashes, data_index, step, pad: 0 });
    sequence::bump(&mut run.model_seq)?;
    let moment = Moment::read(&accounts.slot_hashes)?;
    let (members, witnesses) = (&mut accounts.members, &mut accounts.witnesses);
    Machine { run, model, members, witnesses }.follow(&moment)?;
    sequence::seal(run, &accounts.members, &accounts.witnesses)
}

/// The sender's turn; before all others' that of the owner.
fn check_sender(run: &Run, members: &Members, sender: &Address) -> Result<u8> {
    if *sender == run.main_authority {
        return Ok(0);
    }
    let index = members::find(members, sender).ok_or(CoordinatorError::NotAllowedToCheckpoint)?;
    let seat = &members.seats[index];
    let cooling = run.state == run_state::COOLDOWN && seat.state == member_state::HEALTHY;
    let healthy = cooling && bitmap::has(&run.current().roster, index as u8);
    let holds = seat.tier == 0 && (healthy || bitmap::has(&run.finishers, index as u8));
    require!(holds, CoordinatorError::NotAllowedToCheckpoint);
    Ok(checkpoints::turn(run, index as u8))
}

/// Return whether a member may name a directory: one is recorded, or the present checkpoint is older than the last epoch. A
/// false name on the Hub would otherwise end the naming of directories.
fn may_be_directory(run: &Run, model: &Model) -> bool {
    let is_old = model.checkpoint_step.max(1) < run.start_step;
    let earlier = model.earlier.iter().any(|one| one.checkpoint.kind == checkpoint_kind::LOCAL);
    is_old || earlier || model.checkpoint.kind == checkpoint_kind::LOCAL
}

fn check_hashes(run: &Run, hashes: &[Hash]) -> Result<()> {
    let levels = run.levels as usize;
    let all = run.levels_attested == levels::all(run.levels);
    let same = hashes.len() == levels && *hashes == run.level_hashes[..levels];
    require!(all && same, CoordinatorError::CheckpointMismatch);
    Ok(())
}
