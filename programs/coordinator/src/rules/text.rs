//! Strings in accounts: UTF-8, padded with zeros.

use crate::errors::CoordinatorError;
use anchor_lang::prelude::*;

/// Store `text`, or fail with `error` if it is longer than its field.
pub fn copy(field: &mut [u8], text: &str, error: CoordinatorError) -> Result<()> {
    if fill(field, text) {
        Ok(())
    } else {
        Err(error.into())
    }
}

/// Store `text` if it fits. Return whether it did. `copy` without the error, because a call on sBPF takes at most five
/// words.
#[inline(never)]
fn fill(field: &mut [u8], text: &str) -> bool {
    if text.len() > field.len() {
        return false;
    }
    field.fill(0);
    field[..text.len()].copy_from_slice(text.as_bytes());
    true
}

/// Return the text without its padding.
pub fn read(field: &[u8]) -> &[u8] {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..length]
}
