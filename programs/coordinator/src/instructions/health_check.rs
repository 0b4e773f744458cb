//! Drops healthy members whose results a quorum of the last closed round's witnesses did without.
//!
//! That no quorum held a result is not enough: witnesses that are too few, or one that lies among exactly a quorum, are
//! no evidence against anybody. Nor are the votes of those who have gone since: who is dropped leaves the number that
//! a quorum is of, and only a quorum that remains may take it from there.

use super::Permissionless;
use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{bitmap, committee, members, quorum, sequence},
    state::*,
};
use anchor_lang::prelude::*;

/// Rounds before the current one: the round that has closed last.
const LAST: usize = 1;

pub fn health_check(ctx: &mut Context<Permissionless>, dropped: &Bitmap) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &Run = &accounts.run;
    let training = matches!(run.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
    require!(training, CoordinatorError::WrongState);
    let judged = run.judged(LAST).ok_or(CoordinatorError::StaleHeight)?;
    let sender = members::find(&accounts.members, accounts.user.address()).ok_or(CoordinatorError::NotAMember)?;
    let healthy = accounts.members.seats[sender].state == member_state::HEALTHY;
    require!(healthy, CoordinatorError::SeatMismatch);
    let missing = missing(run, &accounts.members, &accounts.witnesses, judged);
    require!(bitmap::is_subset(dropped, &missing) && !bitmap::is_empty(dropped), CoordinatorError::NotUnhealthy);
    require!(bitmap::is_subset(dropped, &accounts.members.healthy), CoordinatorError::NotUnhealthy);
    members::exit(run, &mut accounts.members, dropped, member_state::DROPPED);
    committee::reelect(&mut accounts.run, &accounts.members);
    sequence::bump(&mut accounts.run.members_seq)?;
    accounts.finish()
}

/// Members of the `judged` round that owed a result which a quorum of the last closed round's witnesses left out.
#[inline(never)]
fn missing(run: &Run, members: &Members, witnesses: &Witnesses, judged: usize) -> Bitmap {
    let ring = run.ring(LAST);
    let (roster, judges) = (&run.rounds[judged].roster, &run.rounds[ring]);
    let count = (judges.attestations as usize).min(MAX_WITNESSES);
    let attestations = &witnesses.rounds[ring].attestations[..count];
    let remaining = attestations.iter().filter(|one| members.seats[one.seat as usize].state == member_state::HEALTHY);
    let absent = quorum::left_out(remaining, quorum::of(u32::from(judges.elected)));
    bitmap::both(&bitmap::without(roster, &judges.attested), &absent)
}
