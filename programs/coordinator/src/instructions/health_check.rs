//! Drops healthy members whose results of two rounds ago a quorum of witnesses did without.
//!
//! That no quorum held a result is not enough: witnesses that are too few, or one that lies among exactly a quorum, are
//! no evidence against anybody.

use super::Permissionless;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{bitmap, members, quorum, sequence},
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
    let missing = missing(run, &accounts.witnesses);
    require!(bitmap::is_subset(dropped, &missing) && !bitmap::is_empty(dropped), CoordinatorError::NotUnhealthy);
    for slot in bitmap::slots(dropped) {
        let member = &mut accounts.members.slots[slot];
        require!(member.state == member_state::HEALTHY, CoordinatorError::NotUnhealthy);
        member.state = member_state::DROPPED;
        member.exited_height = height;
    }
    sequence::bump(&mut accounts.run.members_seq)?;
    accounts.finish()
}

/// Members of two rounds ago that owed a result which a quorum of the next round's witnesses left out.
#[inline(never)]
fn missing(run: &Run, witnesses: &Witnesses) -> Bitmap {
    let ring = run.ring(1);
    let (roster, judged) = (&run.rounds[run.ring(2)].roster, &run.rounds[ring]);
    let count = (judged.attestations as usize).min(MAX_WITNESSES);
    let attestations = &witnesses.rounds[ring].attestations[..count];
    let absent = quorum::left_out(attestations, quorum::of(u32::from(judged.elected)));
    bitmap::both(&bitmap::without(roster, &judged.attested), &absent)
}
