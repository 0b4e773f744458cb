//! `Membership`: what a run keeps of one wallet for longer than that has a seat: its bond, its points, what it delivered
//! of what was due, and whether it is barred.
//!
//! It is bound to the run's address and to the moment the run was created: another run of the same name has memberships
//! of its own. While the wallet has a seat, its points there are newer; see `rules::membership`.

use anchor_lang::prelude::*;

#[account]
pub struct Membership {
    pub run: Address,
    pub wallet: Address,
    /// Paid for the account, and gets that back.
    pub sponsor: Address,
    /// `Run::created` of the run.
    pub created: u64,
    /// Lamports beyond the rent that go back to the wallet when it leaves.
    pub bond: u64,
    /// Lamports beyond the rent that go to nobody: bonds of this wallet when it was ejected.
    pub forfeited: u64,
    pub points: u64,
    pub slashed: u64,
    /// Rounds of which the wallet delivered all that it owed, and rounds of the epochs that it began.
    pub delivered: u32,
    pub due: u32,
    /// The epoch that was counted last, and what is counted of it above.
    pub epoch: u32,
    pub epoch_delivered: u16,
    pub epoch_due: u16,
    /// How often the wallet was ejected.
    pub ejections: u32,
    /// 1 = the wallet has paid the bond and may ask for a place; 0 = only a bar is kept here.
    pub enrolled: u8,
    pub barred: u8,
    pub bump: u8,
    pub version: u8,
}
