//! Sequence numbers by which clients tell whether an account changed.

use crate::{errors::CoordinatorError, state::Run};
use anchor_lang::prelude::*;

/// Counts a change of one account. It begins anew at its end: any wallet can make it rise, and readers ask only whether
/// it is another one than before.
pub fn bump(counter: &mut u32) -> Result<()> {
    *counter = counter.wrapping_add(1);
    Ok(())
}

/// Counts a change of any account.
pub fn advance(run: &mut Run) -> Result<()> {
    run.seq = run.seq.checked_add(1).ok_or(CoordinatorError::Overflow)?;
    Ok(())
}
