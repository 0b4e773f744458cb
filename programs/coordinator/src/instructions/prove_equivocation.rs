//! Eject a member that signed two different results of one share, even if it has left meanwhile. Any wallet may prove
//! it.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{equivocation, members, sequence, slot_hashes, Machine, Moment},
    state::*,
};
use anchor_lang::{pinocchio::sysvars::instructions::Instructions, prelude::*};

#[derive(Accounts)]
pub struct ProveEquivocation {
    pub user: Signer,
    #[account(mut, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(address = run.address_of(MODEL_SEED, 1) @ ErrorCode::ConstraintSeeds)]
    pub model: Account<Model>,
    #[account(mut, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    #[account(mut, address = run.address_of(WITNESSES_SEED, 3) @ ErrorCode::ConstraintSeeds)]
    pub witnesses: Grown<Witnesses>,
    #[account(address = slot_hashes::ID @ CoordinatorError::WrongSlotHashes)]
    pub slot_hashes: UncheckedAccount,
    #[account(address = equivocation::INSTRUCTIONS @ CoordinatorError::WrongInstructions)]
    pub instructions: UncheckedAccount,
}

/// Eject the member. The instruction before this one must be the Ed25519 program's check of both statements
/// (`rules::equivocation`).
pub fn prove_equivocation(ctx: &mut Context<ProveEquivocation>) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    require!(run.active(), CoordinatorError::WrongState);
    let instructions = Instructions::try_from(accounts.instructions.account())?;
    let previous = instructions.get_instruction_relative(-1).map_err(|_| CoordinatorError::NoEquivocation)?;
    require!(*previous.get_program_id() == equivocation::ED25519, CoordinatorError::NoEquivocation);
    let proven = equivocation::read(previous.get_instruction_data()).ok_or(CoordinatorError::NoEquivocation)?;
    require!(*proven.run_id == run.run_id && proven.epoch == run.epoch, CoordinatorError::StaleHeight);
    let member = &accounts.members.seats[proven.seat as usize];
    require!(member.used == 1 && *proven.key == member.p2p, CoordinatorError::SeatMismatch);
    let ejected = members::eject(run, &mut accounts.members, proven.seat);
    require!(ejected, CoordinatorError::AlreadyEjected);
    sequence::bump(&mut run.members_seq);
    let moment = Moment::read(&accounts.slot_hashes)?;
    let mut machine =
        Machine { run, model: &accounts.model, members: &mut accounts.members, witnesses: &mut accounts.witnesses };
    machine.follow(&moment)?;
    sequence::seal(&mut accounts.run, &accounts.members, &accounts.witnesses)
}
