//! Return a stored round's committees, audits and data intervals, for indexers and cross-language tests.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{
        assignment,
        audits::{self, Draw},
        bitmap, committee,
    },
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
/// - 1: whether the result is drawn for an audit, and the seat of its auditor, u8 each
/// - 2: the data interval, u16 start and u16 length
/// - 3: whether the member is a witness of the round, if that is running, u8
pub fn inspect(ctx: &mut Context<Inspect>, which: u8, ring: u8) -> Result<()> {
    let run: &Run = &ctx.accounts.run;
    require!((ring as usize) < STORED_ROUNDS, CoordinatorError::UnknownInspection);
    let round: &Round = &run.rounds[ring as usize];
    let members: &Members = &ctx.accounts.members;
    let answer: Vec<u8> = match which {
        0 => committee::positions(round, &committee::electors(run, members, round), committee::WITNESS),
        1 => auditors(run, members, ring as usize),
        2 => intervals(run, members, round),
        3 => witnesses(run, members, round),
        _ => return Err(CoordinatorError::UnknownInspection.into()),
    };
    set_return_data(&answer);
    Ok(())
}

fn intervals(run: &Run, members: &Members, round: &Round) -> Vec<u8> {
    let shares = assignment::by_seat(round, &run.began, members);
    let mut answer = Vec::new();
    for seat in bitmap::seats(&run.began) {
        for number in shares[seat] {
            answer.extend_from_slice(&number.to_le_bytes());
        }
    }
    answer
}

fn auditors(run: &Run, members: &Members, ring: usize) -> Vec<u8> {
    let back = (run.head as usize + STORED_ROUNDS - ring) % STORED_ROUNDS;
    let mut answer = alloc::vec![0; 2 * bitmap::count(&run.began) as usize];
    let Some(seed) = audits::seed(run, back) else { return answer };
    let draw = Draw::new(run, members, back, seed);
    for (row, seat) in answer.chunks_exact_mut(2).zip(bitmap::seats(&run.began)) {
        if let Some(audit) = draw.audit(seat as u8) {
            row.copy_from_slice(&[1, audit.auditor]);
        }
    }
    answer
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
