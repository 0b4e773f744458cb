//! Sequence numbers by which clients tell whether an account changed.

use crate::{errors::CoordinatorError, state::Run};
use anchor_lang::prelude::*;

/// Counts a change of one account.
pub fn bump(counter: &mut u32) -> Result<()> {
    *counter = counter.checked_add(1).ok_or(CoordinatorError::Overflow)?;
    Ok(())
}

/// Counts a change of any account.
pub fn advance(run: &mut Run) -> Result<()> {
    run.seq = run.seq.checked_add(1).ok_or(CoordinatorError::Overflow)?;
    Ok(())
}
