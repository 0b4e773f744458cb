//! Return a stored round's committees and data intervals, for indexers and cross-language tests.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{assignment, bitmap, committee},
    state::*,
};
use alloc::vec::Vec;
use anchor_lang::prelude::*;

#[derive(Accounts)]
pub struct Inspect {
    #[account(address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
}

/// Return, by rank among the members that began the epoch (for `which` 0 among the electors):
///
/// - 0: the position in the order of the witnesses, u8
/// - 1: the position in the order of the committee, u8
/// - 2: the data interval, u16 start and u16 length
/// - 3: whether the member is a witness of the round, if that is running, u8
pub fn inspect(ctx: &mut Context<Inspect>, which: u8, ring: u8) -> Result<()> {
    let run: &Run = &ctx.accounts.run;
    require!((ring as usize) < STORED_ROUNDS, CoordinatorError::UnknownInspection);
    let round: &Round = &run.rounds[ring as usize];
    let members: &Members = &ctx.accounts.members;
    let answer: Vec<u8> = match which {
        0 => committee::positions(round, &committee::electors(run, members, round), committee::WITNESS),
        1 => committee::positions(round, &run.began, committee::COMMITTEE),
        2 => intervals(run, members, round),
        3 => witnesses(run, members, round),
        _ => return Err(CoordinatorError::UnknownInspection.into()),
    };
    set_return_data(&answer);
    Ok(())
}

fn intervals(run: &Run, members: &Members, round: &Round) -> Vec<u8> {
    let plan = assignment::Plan::new(round, &run.began, members, run.config.verification_percent);
    let mut by_rank = alloc::vec![[0u8; 4]; bitmap::count(&run.began) as usize];
    for share in plan.shares() {
        let [start_low, start_high] = share.start.to_le_bytes();
        let [len_low, len_high] = share.len.to_le_bytes();
        by_rank[share.rank as usize] = [start_low, start_high, len_low, len_high];
    }
    by_rank.into_flattened()
}

fn witnesses(run: &Run, members: &Members, round: &Round) -> Vec<u8> {
    let witnesses = committee::witnesses(run, members, round);
    bitmap::seats(&run.began).map(|seat| u8::from(bitmap::has(&witnesses, seat as u8))).collect()
}

#[cfg(target_os = "solana")]
fn set_return_data(data: &[u8]) {
    // SAFETY: the syscall reads `data.len()` bytes, at most the 1,024 of 256 ranks.
    unsafe { solana_define_syscall::definitions::sol_set_return_data(data.as_ptr(), data.len() as u64) }
}

#[cfg(not(target_os = "solana"))]
fn set_return_data(_data: &[u8]) {}
