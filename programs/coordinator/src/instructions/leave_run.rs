//! A member gives up its place, in any state.

use super::Permissionless;
use crate::{
    errors::CoordinatorError,
    rules::{members, sequence},
    state::*,
};
use anchor_lang::prelude::*;

pub fn leave_run(ctx: &mut Context<Permissionless>) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let height = accounts.run.exit_height();
    let index = members::find(&accounts.members, accounts.user.address()).ok_or(CoordinatorError::NotAMember)?;
    let slot = &mut accounts.members.slots[index];
    let healthy = slot.state == member_state::HEALTHY;
    require!(healthy || slot.pending == 1, CoordinatorError::NotAMember);
    slot.pending = 0;
    if healthy {
        slot.state = member_state::WITHDRAWN;
        slot.exited_height = height;
    }
    sequence::bump(&mut accounts.run.members_seq)?;
    accounts.finish()
}
