//! The moment at which an instruction runs: the chain's clock and the hashes of its last slots.

use super::slot_hashes;
use anchor_lang::prelude::*;

/// The clock and the slot hashes, read once per instruction.
pub struct Moment {
    /// Unix seconds.
    pub now: u64,
    pub slot: u64,
    sysvar: AccountView,
}

impl Moment {
    pub fn read(sysvar: &UncheckedAccount) -> Result<Self> {
        let clock = Clock::get()?;
        Ok(Self { now: seconds(&clock), slot: clock.slot, sysvar: *sysvar.account() })
    }

    /// Return the data of the SlotHashes sysvar.
    pub fn slot_hashes(&self) -> &[u8] {
        // SAFETY: a shared view of a sysvar, which no program can borrow mutably.
        unsafe { self.sysvar.borrow_unchecked() }
    }

    /// Return the newest slot's hash. It is not unpredictable: the sender of an instruction knows it and can wait for
    /// another.
    pub fn entropy(&self) -> [u8; 32] {
        slot_hashes::newest(self.slot_hashes())
    }
}

/// Return the chain's clock in Unix seconds.
pub fn now() -> Result<u64> {
    Ok(seconds(&Clock::get()?))
}

fn seconds(clock: &Clock) -> u64 {
    clock.unix_timestamp.max(0) as u64
}

/// Return whether `duration` seconds, and at least one, have passed since `started`.
pub fn elapsed(now: u64, started: u64, duration: u64) -> bool {
    now > started && now >= started.saturating_add(duration)
}
