//! Open and decide cases about audited results.

use super::{
    audits,
    audits::{Audit, Draw},
    backlog::Gaps,
    bitmap, quorum,
};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use bytemuck::Zeroable;

/// A case may be voted on in the round in which it was opened and in this number of rounds after.
const VOTING_ROUNDS: u32 = 4;

/// One member's verdict on the result of `target` in the round `at`.
pub struct Vote<'a> {
    pub seat: u8,
    pub at: &'a RoundId,
    pub target: u8,
    pub mismatch: bool,
}

/// Return the index of the open case about a target's result of the round `at`.
pub fn find(run: &Run, cases: &Cases, Vote { at, target, .. }: &Vote) -> Option<usize> {
    let same = |case: &Case| case.target == *target && case.height == at.height && case.seed == at.seed;
    let mut used = cases.used().iter();
    used.position(|case| same(case) && is_open(run, case)).filter(|_| at.epoch == run.epoch)
}

fn is_open(run: &Run, case: &Case) -> bool {
    run.current().height <= case.opened.saturating_add(VOTING_ROUNDS)
}

/// Return whether members may still vote on a case of the running epoch.
#[inline(never)]
pub fn any_open(run: &Run, cases: &Cases) -> bool {
    cases.used().iter().any(|case| is_open(run, case))
}

/// Return the distance of the round `at` from the current one, in rounds, and the seed that draws its results. None if
/// no case about them may be opened now.
#[inline(never)]
pub fn drawn_round(run: &Run, at: &RoundId) -> Option<(usize, u64)> {
    let back = (1..STORED_ROUNDS).find(|back| run.is_at(at, *back))?;
    audits::seed(run, back).map(|seed| (back, seed))
}

/// Open the case of a drawn auditor. Return its index.
#[inline(never)]
pub fn open(run: &Run, members: &Members, cases: &mut Cases, vote: &Vote) -> Result<usize> {
    let (back, seed) = drawn_round(run, vote.at).ok_or(CoordinatorError::StaleHeight)?;
    require!(vote.mismatch, CoordinatorError::NotDisputed);
    let is_ejected = members.seats[vote.target as usize].state == member_state::EJECTED;
    require!(!is_ejected, CoordinatorError::AlreadyEjected);
    let draw = Draw::new(run, members, back, seed);
    let Audit { auditor, jury } = draw.audit(vote.target).ok_or(CoordinatorError::NotAudited)?;
    require!(auditor == vote.seat, CoordinatorError::NotAuditor);
    let index = cases.free(run, auditor).ok_or(CoordinatorError::CasesFull)?;
    let round = &run.rounds[run.ring(back)];
    cases.entries[index] = Case {
        seed: round.seed,
        intervals: sequences(round, draw.share(vote.target)),
        height: round.height,
        opened: run.current().height,
        target: vote.target,
        auditor,
        not_matching: jury,
        ..Case::zeroed()
    };
    Ok(index)
}

/// Return the sequences at `len` positions of a round's batch, from `start` on. Unused entries are empty.
fn sequences(round: &Round, [start, len]: [u16; 2]) -> [Interval; PIECES] {
    let mut gaps = Gaps::new();
    gaps.add(start, len);
    let mut result = [Interval::zeroed(); PIECES];
    for (entry, interval) in result.iter_mut().zip(gaps.intervals(round)) {
        *entry = interval;
    }
    result
}

/// Count a vote. Return the member that loses the case if the vote decides it.
pub fn cast(case: &mut Case, vote: &Vote) -> Result<Option<u8>> {
    let jury = case.jury();
    require!(bitmap::has(&jury, vote.seat), CoordinatorError::NotAJuror);
    require!(!bitmap::has(&case.voted, vote.seat), CoordinatorError::DuplicateVerdict);
    bitmap::set(&mut case.voted, vote.seat);
    if !vote.mismatch {
        bitmap::clear(&mut case.not_matching, vote.seat);
    }
    let (votes, loser) = if vote.mismatch { (case.mismatches(), case.target) } else { (case.matches(), case.auditor) };
    let jurors = bitmap::count(&jury);
    let decisive = quorum::of(jurors).max(audits::MIN_VOTES);
    // The accuser never votes for a match, and the other two of a jury of three must be able to acquit.
    let needed = if vote.mismatch { decisive } else { decisive.min(jurors - 1) };
    Ok((bitmap::count(&votes) >= needed).then_some(loser))
}

/// Put the sequences of a void result back into the backlog. If it has no room for them, they count as trained.
///
/// If the levels are already attested, also lower `attested_data_index`, so that a checkpoint of them counts these
/// sequences as untrained.
pub fn put_back(run: &mut Run, backlog: &mut Backlog, case: &Case) {
    let count = case.intervals.iter().take_while(|interval| interval.len > 0).count();
    if backlog.has_room(count) {
        backlog.put(run, &case.intervals[..count]);
        run.attested_data_index = run.attested_data_index.min(case.intervals[0].start);
    }
}

impl Cases {
    fn used(&self) -> &[Case] {
        &self.entries[..(self.count as usize).min(MAX_CASES)]
    }

    /// Remove the case at `index`, which must be used.
    pub fn remove(&mut self, index: usize) {
        let last = self.used().len().saturating_sub(1);
        self.entries[index] = self.entries[last];
        self.count = last as u64;
    }

    /// Return the index of an entry that may be overwritten: that of an expired case, or a new one. None if there is
    /// no such entry, or if the auditor has an open case.
    fn free(&mut self, run: &Run, auditor: u8) -> Option<usize> {
        let mut free = self.used().len();
        for (index, case) in self.used().iter().enumerate() {
            if !is_open(run, case) {
                free = index;
            } else if case.auditor == auditor {
                return None;
            }
        }
        self.count = self.count.max(free as u64 + 1).min(MAX_CASES as u64);
        (free < MAX_CASES).then_some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    const AT: RoundId = RoundId { epoch: 4, height: 3, seed: 9 };

    fn case(jurors: u8) -> Case {
        let mut case = Case { target: 200, auditor: 0, ..Case::zeroed() };
        for seat in 0..jurors {
            bitmap::set(&mut case.not_matching, seat);
        }
        case
    }

    fn votes(case: &mut Case, seats: core::ops::Range<u8>, mismatch: bool) -> Option<u8> {
        let mut loser = None;
        for seat in seats {
            assert_eq!(loser, None, "decided early");
            loser = cast(case, &Vote { seat, at: &AT, target: 200, mismatch }).unwrap();
        }
        loser
    }

    #[test]
    fn two_thirds_of_jury_decide() {
        for (jurors, needed) in [(3, 3), (4, 3), (5, 4), (6, 4), (9, 6), (255, 170)] {
            assert_eq!(votes(&mut case(jurors), 0..needed, true), Some(200));
            let mut disputed = case(jurors);
            assert_eq!(votes(&mut disputed, 0..1, true), None);
            assert_eq!(votes(&mut disputed, 1..(needed + 1).min(jurors), false), Some(0));
        }
    }

    #[test]
    fn strangers_and_second_votes_are_refused() {
        let mut case = case(5);
        let mut refused = |seat, mismatch| cast(&mut case, &Vote { seat, at: &AT, target: 200, mismatch }).is_err();
        assert!(!refused(1, true));
        assert!(refused(1, true) && refused(1, false));
        assert!(refused(5, true) && refused(200, false));
    }

    #[test]
    fn expired_cases_make_room() {
        let mut run = Box::new(Run::zeroed());
        let mut cases = Cases::zeroed();
        for index in 0..MAX_CASES {
            assert_eq!(cases.free(&run, 1), Some(index));
            cases.entries[index].auditor = 2;
        }
        assert_eq!(cases.free(&run, 1), None);
        run.rounds[0].height = VOTING_ROUNDS;
        assert_eq!(cases.free(&run, 1), None);
        run.rounds[0].height += 1;
        cases.entries[0].opened = 1;
        assert_eq!(cases.free(&run, 2), None); // this auditor has an open case
        assert_eq!(cases.free(&run, 1), Some(MAX_CASES - 1));
        cases.remove(3);
        assert_eq!(cases.count, MAX_CASES as u64 - 1);
    }

    fn vote_on(at: &RoundId, target: u8) -> Vote<'_> {
        Vote { seat: 0, at, target, mismatch: true }
    }

    #[test]
    fn expired_case_is_not_found() {
        let mut run = Box::new(Run::zeroed());
        run.epoch = 4;
        let mut cases = Cases::zeroed();
        cases.count = 1;
        cases.entries[0] = Case { seed: 9, height: 3, opened: 5, ..case(5) };
        for (height, found) in [(5, Some(0)), (9, Some(0)), (10, None)] {
            run.rounds[0].height = height;
            assert_eq!(find(&run, &cases, &vote_on(&AT, 200)), found);
            assert_eq!(any_open(&run, &cases), found.is_some());
        }
        run.rounds[0].height = 5;
        assert_eq!(find(&run, &cases, &vote_on(&AT, 201)), None);
        assert_eq!(find(&run, &cases, &vote_on(&RoundId { epoch: 5, ..AT }, 200)), None);
        assert_eq!(find(&run, &cases, &vote_on(&RoundId { seed: 8, ..AT }, 200)), None);
    }
}
