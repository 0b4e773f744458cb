//! Sequence numbers, which tell clients that an account changed, and the invariant check that ends each instruction.

use super::invariant;
use crate::{
    errors::CoordinatorError,
    state::{Members, Run, Witnesses},
};
use anchor_lang::prelude::*;

/// Count a change of one account. The counter wraps, because any wallet can make it rise and readers only compare it
/// for equality.
pub fn bump(counter: &mut u32) {
    *counter = counter.wrapping_add(1);
}

/// End an instruction that changed a run: check the invariants and count the change.
pub fn seal(run: &mut Run, members: &Members, witnesses: &Witnesses) -> Result<()> {
    invariant::check_all(run, members, witnesses)?;
    advance(run)
}

/// End an instruction that changed only the run and its members.
pub fn seal_members(run: &mut Run, members: &Members) -> Result<()> {
    invariant::check(run)?;
    invariant::check_members(run, members)?;
    advance(run)
}

/// End an instruction that changed only the run, or also its model.
pub fn seal_run(run: &mut Run) -> Result<()> {
    invariant::check(run)?;
    advance(run)
}

/// Count a change of any account.
fn advance(run: &mut Run) -> Result<()> {
    run.seq = run.seq.checked_add(1).ok_or(CoordinatorError::Overflow)?;
    Ok(())
}
