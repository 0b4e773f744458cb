//! A member leaves the running epoch and gives up its seat in the next one, in any state of the run.
//!
//! It names a round that the run still stores, so that nobody can delay the transaction into another epoch.

use super::Permissionless;
use crate::{
    constants::STORED_ROUNDS,
    errors::CoordinatorError,
    rules::{bitmap, committee, members, sequence},
    state::*,
};
use anchor_lang::prelude::*;

pub fn leave_run(ctx: &mut Context<Permissionless>, at: &RoundId) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let stored = (0..STORED_ROUNDS).any(|back| accounts.run.is_at(at, back));
    require!(stored, CoordinatorError::StaleHeight);
    let index = members::find(&accounts.members, accounts.user.address()).ok_or(CoordinatorError::NotAMember)?;
    let seat = &mut accounts.members.seats[index];
    let healthy = seat.state == member_state::HEALTHY;
    let waits = seat.pending == pending::WAITS;
    require!(healthy || waits, CoordinatorError::NotAMember);
    if waits {
        seat.pending = pending::NONE;
    }
    if healthy {
        members::exit(&accounts.run, &mut accounts.members, &bitmap::only(index as u8), member_state::WITHDRAWN);
        committee::reelect(&mut accounts.run, &accounts.members);
    }
    sequence::bump(&mut accounts.run.members_seq);
    accounts.finish()
}
