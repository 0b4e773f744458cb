//! Sequence numbers by which clients tell whether an account changed.

use super::invariant;
use crate::{
    errors::CoordinatorError,
    state::{Members, Run, Witnesses},
};
use anchor_lang::prelude::*;

/// Counts a change of one account. It starts at 0 again at its end: any wallet can make it rise, and readers ask only whether
/// it is another one than before.
pub fn bump(counter: &mut u32) -> Result<()> {
    *counter = counter.wrapping_add(1);
    Ok(())
}

/// Ends an instruction that changed a run: what must hold does, and the change is counted.
pub fn seal(run: &mut Run, members: &Members, witnesses: &Witnesses) -> Result<()> {
    invariant::check_all(run, members, witnesses)?;
    advance(run)
}

/// The same of an instruction that changes nothing but the run and its members.
pub fn seal_members(run: &mut Run, members: &Members) -> Result<()> {
    invariant::check(run)?;
    invariant::check_members(run, members)?;
    advance(run)
}

/// The same where the other accounts stayed as they were.
pub fn seal_run(run: &mut Run) -> Result<()> {
    invariant::check(run)?;
    advance(run)
}

/// Counts a change of any account.
fn advance(run: &mut Run) -> Result<()> {
    run.seq = run.seq.checked_add(1).ok_or(CoordinatorError::Overflow)?;
    Ok(())
}
