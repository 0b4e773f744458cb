//! Anybody shows that a member signed two different results of one share, and it is ejected, also if it has left meanwhile.

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

/// The instruction before this one is of the Ed25519 program and checks both statements (`rules::equivocation`).
pub fn prove_equivocation(ctx: &mut Context<ProveEquivocation>) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    require!(run.active(), CoordinatorError::WrongState);
    let instructions = Instructions::try_from(accounts.instructions.account())?;
    let before = instructions.get_instruction_relative(-1).map_err(|_| CoordinatorError::NoEquivocation)?;
    require!(*before.get_program_id() == equivocation::ED25519, CoordinatorError::NoEquivocation);
    let proven = equivocation::read(before.get_instruction_data()).ok_or(CoordinatorError::NoEquivocation)?;
    require!(*proven.run_id == run.run_id && proven.epoch == run.epoch, CoordinatorError::StaleHeight);
    let member = &accounts.members.seats[proven.seat as usize];
    require!(member.used == 1 && *proven.key == member.p2p, CoordinatorError::SeatMismatch);
    let ejected = members::eject(run, &mut accounts.members, proven.seat);
    require!(ejected, CoordinatorError::AlreadyEjected);
    sequence::bump(&mut run.members_seq)?;
    let moment = Moment::read(&accounts.slot_hashes)?;
    let (members, witnesses) = (&mut accounts.members, &mut accounts.witnesses);
    Machine { run, model: &accounts.model, members, witnesses }.follow(&moment)?;
    sequence::seal(&mut accounts.run, &accounts.members, &accounts.witnesses)
}
