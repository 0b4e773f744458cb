//! The accounts of the instructions that any wallet may send, always in the same order.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{sequence, slot_hashes, Machine, Moment},
    state::*,
};
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct Permissionless {
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
}

/// The accounts of an instruction that may change the model.
#[derive(Accounts)]
pub struct PermissionlessModel {
    pub user: Signer,
    #[account(mut, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(mut, address = run.address_of(MODEL_SEED, 1) @ ErrorCode::ConstraintSeeds)]
    pub model: Account<Model>,
    #[account(mut, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    #[account(mut, address = run.address_of(WITNESSES_SEED, 3) @ ErrorCode::ConstraintSeeds)]
    pub witnesses: Grown<Witnesses>,
    #[account(address = slot_hashes::ID @ CoordinatorError::WrongSlotHashes)]
    pub slot_hashes: UncheckedAccount,
}

impl Permissionless {
    /// Return the accounts as the rules see them.
    pub fn machine(&mut self) -> Machine<'_> {
        Machine { run: &mut self.run, model: &self.model, members: &mut self.members, witnesses: &mut self.witnesses }
    }

    /// End an instruction that changed something: perform the transition that became due, and count the change.
    pub fn finish(&mut self) -> Result<()> {
        let moment = Moment::read(&self.slot_hashes)?;
        self.machine().follow(&moment)?;
        sequence::seal(&mut self.run, &self.members, &self.witnesses)
    }
}
