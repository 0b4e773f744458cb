//! When an instruction runs: the chain's clock and the hashes of its last slots.

use super::slot_hashes;
use anchor_lang::prelude::*;

/// Read once per instruction.
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

    /// The SlotHashes sysvar.
    pub fn slot_hashes(&self) -> &[u8] {
        // SAFETY: a shared view of a sysvar, which no program can borrow mutably.
        unsafe { self.sysvar.borrow_unchecked() }
    }

    /// The newest slot's hash: the sender of an instruction knows it and can wait for another one.
    pub fn entropy(&self) -> [u8; 32] {
        slot_hashes::newest(self.slot_hashes())
    }
}

/// Unix seconds of the chain's clock.
pub fn now() -> Result<u64> {
    Ok(seconds(&Clock::get()?))
}

fn seconds(clock: &Clock) -> u64 {
    clock.unix_timestamp.max(0) as u64
}

/// A duration is over once at least one second has passed and `duration` seconds have.
pub fn elapsed(now: u64, started: u64, duration: u64) -> bool {
    now > started && now >= started.saturating_add(duration)
}
