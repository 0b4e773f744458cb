//! Strings in accounts: UTF-8, padded with zeros.

use crate::errors::CoordinatorError;
use anchor_lang::prelude::*;

/// Stores `text`, or fails with `error` when it is longer than its field.
pub fn copy(field: &mut [u8], text: &str, error: CoordinatorError) -> Result<()> {
    if fill(field, text) {
        Ok(())
    } else {
        Err(error.into())
    }
}

/// Stores `text` if it fits. Four words of arguments: a call on sBPF takes no more than five.
#[inline(never)]
fn fill(field: &mut [u8], text: &str) -> bool {
    if text.len() > field.len() {
        return false;
    }
    field.fill(0);
    field[..text.len()].copy_from_slice(text.as_bytes());
    true
}

/// The text without its padding.
pub fn read(field: &[u8]) -> &[u8] {
    let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..length]
}
