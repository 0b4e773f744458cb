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

/// Return the index of the case about a target's result of the round `at`, open or just decided.
pub fn find(run: &Run, cases: &Cases, Vote { at, target, .. }: &Vote) -> Option<usize> {
    let same = |case: &Case| case.target == *target && case.height == at.height && case.seed == at.seed;
    let mut used = cases.used().iter();
    used.position(|case| same(case) && is_kept(run, case)).filter(|_| at.epoch == run.epoch)
}

/// Return whether a case still occupies its entry. A decided one does while its result can be disputed, so that nobody
/// returns its sequences twice.
fn is_kept(run: &Run, case: &Case) -> bool {
    let rounds = if case.is_decided() { audits::OPENING_ROUNDS as u32 - 1 } else { VOTING_ROUNDS };
    run.current().height <= case.opened.saturating_add(rounds)
}

/// Return the distance of the round `at` from the current one, in rounds, and the seed of the draw. None if no case
/// about its results may be opened now.
fn drawn_round(run: &Run, at: &RoundId) -> Option<(usize, u64)> {
    let back = (1..STORED_ROUNDS).find(|back| run.is_at(at, *back))?;
    audits::seed(run, back).map(|seed| (back, seed))
}

/// Open a case for the drawn auditor. Return its index. The target may be ejected; its sequences count as trained.
#[inline(never)]
pub fn open(run: &Run, members: &Members, cases: &mut Cases, vote: &Vote) -> Result<usize> {
    let (back, seed) = drawn_round(run, vote.at).ok_or(CoordinatorError::StaleHeight)?;
    require!(vote.mismatch, CoordinatorError::NotDisputed);
    let draw = Draw::new(run, members, back, seed);
    let Audit { auditor, jury } = draw.audit(vote.target).ok_or(CoordinatorError::NotAudited)?;
    require!(auditor == vote.seat, CoordinatorError::NotAuditor);
    let index = cases.free(run, &members.judges, vote).ok_or(CoordinatorError::CasesFull)?;
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

/// Count a vote. If it decides the case, empty the jury and return the member that loses.
///
/// A decision takes two thirds of the jurors that are `healthy` or have voted, and more than half of the jury. If it
/// took two thirds of the jury, established wallets that leave every epoch at once could prevent all decisions.
pub fn cast(case: &mut Case, healthy: &Bitmap, vote: &Vote) -> Result<Option<u8>> {
    let jury = case.jury();
    require!(bitmap::has(&jury, vote.seat), CoordinatorError::NotAJuror);
    require!(!bitmap::has(&case.voted, vote.seat), CoordinatorError::DuplicateVerdict);
    bitmap::set(&mut case.voted, vote.seat);
    if !vote.mismatch {
        bitmap::clear(&mut case.not_matching, vote.seat);
    }
    let (votes, loser) = if vote.mismatch { (case.mismatches(), case.target) } else { (case.matches(), case.auditor) };
    let available = bitmap::either(&case.voted, &bitmap::both(&jury, healthy));
    let needed = quorum::of(bitmap::count(&available)).max(quorum::majority(bitmap::count(&jury)));
    if bitmap::count(&votes) < needed {
        return Ok(None);
    }
    case.voted = [0; 32];
    case.not_matching = [0; 32];
    Ok(Some(loser))
}

/// Put the sequences of a void result back into the backlog. If it has no room for them, they count as trained.
///
/// Lower `attested_data_index` too, so that a checkpoint of the levels counts these sequences as untrained. It matters
/// only if the levels are attested.
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

    /// Return the index of an entry that may be overwritten: that of a case no longer kept, or a new one.
    ///
    /// None if half of the entries have cases about results of the target's class, or if the auditor opened one of
    /// these that is undecided. So cases about newcomers never prevent one about an established member.
    fn free(&mut self, run: &Run, judges: &Bitmap, Vote { seat: auditor, target, .. }: &Vote) -> Option<usize> {
        let mut free = self.used().len();
        let mut of_class = 0;
        for (index, case) in self.used().iter().enumerate() {
            if !is_kept(run, case) {
                free = index;
            } else if bitmap::has(judges, case.target) == bitmap::has(judges, *target) {
                of_class += 1;
                if case.auditor == *auditor && !case.is_decided() {
                    return None;
                }
            }
        }
        if of_class >= audits::MAX_OF_CLASS || free >= MAX_CASES {
            return None;
        }
        self.count = self.count.max(free as u64 + 1);
        Some(free)
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
            loser = cast(case, &[u8::MAX; 32], &Vote { seat, at: &AT, target: 200, mismatch }).unwrap();
        }
        loser
    }

    #[test]
    fn two_thirds_of_jury_decide() {
        for (jurors, needed) in [(4, 3), (5, 4), (6, 4), (9, 6), (255, 170)] {
            assert_eq!(votes(&mut case(jurors), 0..needed, true), Some(200));
            let mut disputed = case(jurors);
            assert_eq!(votes(&mut disputed, 0..1, true), None);
            assert_eq!(votes(&mut disputed, 1..needed + 1, false), Some(0));
        }
    }

    #[test]
    fn absent_jurors_do_not_prevent_a_decision() {
        for (jurors, present, needed) in [(13, 8, 7), (13, 10, 7), (13, 11, 8), (9, 4, 5), (4, 2, 3)] {
            let mut healthy = [0; 32];
            for seat in 0..present {
                bitmap::set(&mut healthy, seat);
            }
            let mut case = case(jurors);
            for seat in 0..needed {
                let vote = Vote { seat, at: &AT, target: 200, mismatch: true };
                assert_eq!(cast(&mut case, &healthy, &vote).unwrap(), (seat + 1 == needed).then_some(200));
            }
        }
    }

    #[test]
    fn strangers_and_second_votes_are_refused() {
        let mut case = case(5);
        let everyone = [u8::MAX; 32];
        let mut refused =
            |seat, mismatch| cast(&mut case, &everyone, &Vote { seat, at: &AT, target: 200, mismatch }).is_err();
        assert!(!refused(1, true));
        assert!(refused(1, true) && refused(1, false));
        assert!(refused(5, true) && refused(200, false));
    }

    #[test]
    fn expired_cases_make_room() {
        let mut run = Box::new(Run::zeroed());
        let mut cases = Cases::zeroed();
        let judges = bitmap::only(200);
        let by = |seat, target| Vote { seat, at: &AT, target, mismatch: true };
        for index in 0..MAX_CASES {
            let target = if index < 4 { 200 } else { 201 };
            assert_eq!(cases.free(&run, &judges, &by(1, target)), Some(index));
            cases.entries[index] = Case { auditor: 2, target, ..case(4) };
            assert_eq!(cases.free(&run, &judges, &by(2, target)), None); // this auditor has an open case
        }
        assert_eq!(cases.free(&run, &judges, &by(1, 200)), None);
        run.rounds[0].height = VOTING_ROUNDS;
        assert_eq!(cases.free(&run, &judges, &by(1, 201)), None);
        run.rounds[0].height += 1;
        cases.entries[0].opened = 1;
        assert_eq!(cases.free(&run, &judges, &by(2, 200)), None);
        assert_eq!(cases.free(&run, &judges, &by(2, 201)), Some(MAX_CASES - 1));
        assert_eq!(cases.count, MAX_CASES as u64);
    }

    #[test]
    fn decided_case_is_kept_while_its_result_may_be_disputed() {
        let mut run = Box::new(Run::zeroed());
        run.epoch = 4;
        let mut cases = Cases::zeroed();
        cases.count = 1;
        cases.entries[0] = Case { seed: 9, height: 3, opened: 5, ..case(5) };
        assert_eq!(votes(&mut cases.entries[0], 0..4, true), Some(200));
        assert!(cast(&mut cases.entries[0], &[u8::MAX; 32], &vote_on(&AT, 200)).is_err());
        for (height, index) in [(5, Some(0)), (6, Some(0)), (7, None)] {
            run.rounds[0].height = height;
            assert_eq!(find(&run, &cases, &vote_on(&AT, 200)), index);
            let free = if index.is_some() { 1 } else { 0 };
            assert_eq!(cases.free(&run, &bitmap::only(200), &vote_on(&AT, 200)), Some(free));
            cases.count = 1;
        }
    }

    #[test]
    fn cases_of_one_class_leave_half_of_the_entries() {
        let run = Box::new(Run::zeroed());
        let mut cases = Cases::zeroed();
        let by = |seat, target| Vote { seat, at: &AT, target, mismatch: true };
        for index in 0..MAX_CASES / 2 {
            assert_eq!(cases.free(&run, &bitmap::only(200), &by(1, 201)), Some(index));
            cases.entries[index] = Case { auditor: 2, target: 201, ..case(4) };
        }
        assert_eq!(cases.free(&run, &bitmap::only(200), &by(1, 201)), None);
        assert_eq!(cases.free(&run, &bitmap::only(200), &by(2, 200)), Some(MAX_CASES / 2));
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
        }
        run.rounds[0].height = 5;
        assert_eq!(find(&run, &cases, &vote_on(&AT, 201)), None);
        assert_eq!(find(&run, &cases, &vote_on(&RoundId { epoch: 5, ..AT }, 200)), None);
        assert_eq!(find(&run, &cases, &vote_on(&RoundId { seed: 8, ..AT }, 200)), None);
    }
}
