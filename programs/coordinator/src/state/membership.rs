//! `Membership`: what a run keeps of a wallet even without a seat: its bond, points, deliveries, and whether it is
//! barred.
//!
//! It belongs to the run's address and creation slot, so another run of the same name has its own memberships. While
//! the wallet has a seat, the points in the seat are newer; see `rules::membership`.

use anchor_lang::prelude::*;

#[account]
pub struct Membership {
    pub run: Address,
    pub wallet: Address,
    /// The wallet that paid the rent and gets it back.
    pub sponsor: Address,
    /// `Run::created` of the run.
    pub created: u64,
    /// Lamports beyond the rent that go back to the wallet when it leaves.
    pub bond: u64,
    /// Lamports beyond the rent that will be destroyed: bonds that this wallet lost by ejections.
    pub forfeited: u64,
    pub points: u64,
    pub slashed: u64,
    /// Rounds in which the wallet delivered all that it owed.
    pub delivered: u32,
    /// Rounds of the epochs that the wallet began.
    pub due: u32,
    /// The epoch that was counted last.
    pub epoch: u32,
    /// What `delivered` contains of that epoch.
    pub epoch_delivered: u16,
    /// What `due` contains of that epoch.
    pub epoch_due: u16,
    /// How often the wallet was ejected.
    pub ejections: u32,
    /// 1 = the wallet has paid the bond and may join; 0 = only a bar is kept here.
    pub enrolled: u8,
    pub barred: u8,
    pub bump: u8,
    pub version: u8,
}
