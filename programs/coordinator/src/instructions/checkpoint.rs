//! Name a durable checkpoint. Its hashes must be those that the members attested.

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
    /// 1 Hub, 2 local.
    pub kind: u8,
    /// Repository on the Hub or directory, at most 192 bytes.
    pub repo: String,
    /// Revision of the repository, at most 64 bytes.
    pub revision: String,
    /// SHA-256 of each level, ascending by level.
    pub hashes: Vec<[u8; 32]>,
}

pub fn checkpoint(ctx: &mut Context<PermissionlessModel>, params: CheckpointParams) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    let model: &mut Model = &mut accounts.model;
    require!(run.state != run_state::UNINITIALIZED, CoordinatorError::WrongState);
    let turn = check_sender(run, &accounts.members, accounts.user.address())?;
    check_hashes(run, &params.hashes)?;
    // A provisional epoch has no checkpoint, but the state before it may still get one.
    require!(!provisional::is_provisional(run, &accounts.members), CoordinatorError::CheckpointMismatch);
    let owner = *accounts.user.address() == run.main_authority;
    // The owner, or a member with an earlier turn, may replace a checkpoint of the same step.
    let may_correct = run.attested_step == model.checkpoint_step && (owner || turn < model.checkpoint_turn);
    let accepted = run.attested_step > model.checkpoint_step || may_correct;
    require!(accepted, CoordinatorError::CheckpointNotNewer);
    let CheckpointParams { kind, repo, revision, .. } = params;
    let allowed = match kind {
        checkpoint_kind::LOCAL => owner || may_be_directory(run, model),
        _ => kind != checkpoint_kind::DUMMY,
    };
    require!(allowed, CoordinatorError::CheckpointPlaceRefused);
    let checkpoint = read_checkpoint(&CheckpointSource { kind, repo, revision })?;
    let recorded = Recorded {
        checkpoint,
        hashes: run.level_hashes,
        data_index: run.attested_data_index,
        step: run.attested_step,
        pad: 0,
    };
    model.checkpoint_turn = turn;
    checkpoints::replace(model, &recorded);
    sequence::bump(&mut run.model_seq);
    let moment = Moment::read(&accounts.slot_hashes)?;
    let mut machine = Machine { run, model, members: &mut accounts.members, witnesses: &mut accounts.witnesses };
    machine.follow(&moment)?;
    sequence::seal(run, &accounts.members, &accounts.witnesses)
}

/// Return the sender's turn to name a checkpoint. The owner's is before all others. A member must be established or
/// have delivered in the last epoch: idle wallets could otherwise name false locations before all others.
fn check_sender(run: &Run, members: &Members, sender: &Address) -> Result<u8> {
    if *sender == run.main_authority {
        return Ok(0);
    }
    let index = members::find(members, sender).ok_or(CoordinatorError::NotAllowedToCheckpoint)?;
    let seat = &members.seats[index];
    let cooling = run.state == run_state::COOLDOWN && seat.state == member_state::HEALTHY;
    let has_trained = bitmap::has(&bitmap::either(&members.proven, &members.established), index as u8);
    let stayed = cooling && bitmap::has(&run.current().roster, index as u8);
    let finished = bitmap::has(&run.finishers, index as u8);
    let holds = seat.tier == 0 && has_trained && (stayed || finished);
    let is_ejected = seat.state == member_state::EJECTED;
    require!(holds && !is_ejected, CoordinatorError::NotAllowedToCheckpoint);
    Ok(checkpoints::turn(run, index as u8))
}

/// Return whether a member may name a directory: a recorded checkpoint is one, or the current checkpoint is older than
/// the last epoch. Without the second case, a false Hub name could end the use of directories.
fn may_be_directory(run: &Run, model: &Model) -> bool {
    let is_old = model.checkpoint_step.max(1) < run.start_step;
    let earlier = model.earlier.iter().any(|one| one.checkpoint.kind == checkpoint_kind::LOCAL);
    is_old || earlier || model.checkpoint.kind == checkpoint_kind::LOCAL
}

fn check_hashes(run: &Run, hashes: &[Hash]) -> Result<()> {
    let levels = run.levels as usize;
    let all_attested = run.levels_attested == levels::all(run.levels);
    let same = hashes.len() == levels && *hashes == run.level_hashes[..levels];
    require!(all_attested && same, CoordinatorError::CheckpointMismatch);
    Ok(())
}
