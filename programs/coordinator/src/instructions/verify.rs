//! A member votes on whether the target's result matches the member's own replay. The drawn auditor opens a case, and
//! the jury decides it. The loser (the target, if a mismatch decided) is ejected, even if it has left meanwhile.

use super::Permissionless;
use crate::{
    errors::CoordinatorError,
    rules::{cases, members, sequence},
    state::*,
};
use anchor_lang::prelude::*;

pub fn verify(ctx: &mut Context<Permissionless>, seat: u8, at: &RoundId, target: u8, mismatch: bool) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let run: &mut Run = &mut accounts.run;
    require!(run.active(), CoordinatorError::WrongState);
    let Witnesses { cases, backlog, .. } = &mut *accounts.witnesses;
    let vote = cases::Vote { seat, at, target, mismatch };
    let found = cases::find(run, cases, &vote);
    members::check_healthy(&accounts.members, seat, accounts.user.address())?;
    let index = match found {
        Some(index) => index,
        None => cases::open(run, &accounts.members, cases, &vote)?,
    };
    let case = &mut cases.entries[index];
    if let Some(loser) = cases::cast(case, &accounts.members.healthy, &vote)? {
        if mismatch {
            cases::put_back(run, backlog, case);
        }
        if members::eject(run, &mut accounts.members, loser) {
            sequence::bump(&mut run.members_seq);
        }
    }
    accounts.finish()
}
