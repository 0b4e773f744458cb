//! The sysvar whose newest entry makes the seeds of rounds unpredictable.

use anchor_lang::prelude::*;

pub const ID: Address = anchor_lang::address!("SysvarS1otHashes111111111111111111111111111");

/// Entry count and slot number stand before the newest hash.
const NEWEST_HASH: usize = 16;

/// The newest slot's hash; zeros when there is none yet.
pub fn newest(sysvar: &UncheckedAccount) -> [u8; 32] {
    // SAFETY: a shared view of a sysvar, which no program can borrow mutably.
    let data = unsafe { sysvar.account().borrow_unchecked() };
    let mut hash = [0; 32];
    if let Some(bytes) = data.get(NEWEST_HASH..NEWEST_HASH + 32) {
        hash.copy_from_slice(bytes);
    }
    hash
}
