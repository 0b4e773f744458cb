//! Drops healthy members whose results of two rounds ago no quorum of witnesses held.

use super::Permissionless;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{bitmap, members, sequence},
    state::*,
};
use anchor_lang::prelude::*;

pub fn health_check(ctx: &mut Context<Permissionless>, dropped: &Bitmap) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &Run = &accounts.run;
    let training = matches!(run.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    require!(training, CoordinatorError::WrongState);
    let height = run.current().height;
    require!(height >= 2, CoordinatorError::StaleHeight);
    let sender = members::find(&accounts.members, accounts.user.address()).ok_or(CoordinatorError::NotAMember)?;
    let healthy = accounts.members.slots[sender].state == member_state::HEALTHY;
    require!(healthy, CoordinatorError::SlotMismatch);
    let (roster, attested) = (&run.rounds[run.ring(2)].roster, &run.rounds[run.ring(1)].attested);
    let missing = bitmap::is_subset(dropped, &bitmap::without(roster, attested));
    require!(missing && !bitmap::is_empty(dropped), CoordinatorError::NotUnhealthy);
    for slot in bitmap::slots(dropped) {
        let member = &mut accounts.members.slots[slot];
        require!(member.state == member_state::HEALTHY, CoordinatorError::NotUnhealthy);
        member.state = member_state::DROPPED;
        member.exited_height = height;
    }
    sequence::bump(&mut accounts.run.members_seq)?;
    accounts.finish()
}
