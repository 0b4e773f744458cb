//! Drop healthy members whose results the witnesses of the last closed round did not receive (`rules::drops`).

use super::Permissionless;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{bitmap, committee, drops, members, sequence},
    state::*,
};
use anchor_lang::prelude::*;

pub fn health_check(ctx: &mut Context<Permissionless>, dropped: &Bitmap) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &Run = &accounts.run;
    let training = matches!(run.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    require!(training, CoordinatorError::WrongState);
    let judged = run.judged(drops::LAST).ok_or(CoordinatorError::StaleHeight)?;
    let sender = members::find(&accounts.members, accounts.user.address()).ok_or(CoordinatorError::NotAMember)?;
    let healthy = accounts.members.seats[sender].state == member_state::HEALTHY;
    require!(healthy, CoordinatorError::SeatMismatch);
    let droppable = drops::droppable(run, &accounts.members, &accounts.witnesses, judged);
    let allowed = bitmap::both(&bitmap::either(&droppable.absent, &droppable.incomplete), &accounts.members.healthy);
    require!(bitmap::is_subset(dropped, &allowed) && !bitmap::is_empty(dropped), CoordinatorError::NotUnhealthy);
    members::exit(run, &mut accounts.members, dropped, member_state::DROPPED);
    // A member that is dropped for its levels is no longer established.
    let incomplete = bitmap::both(dropped, &droppable.incomplete);
    accounts.members.established = bitmap::without(&accounts.members.established, &incomplete);
    committee::reelect(&mut accounts.run, &accounts.members);
    sequence::bump(&mut accounts.run.members_seq);
    accounts.finish()
}
