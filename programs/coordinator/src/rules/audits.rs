//! Draw which recorded results of a round are audited, and by whom.
//!
//! The draw follows from a seed whose slot is fixed after the results were recorded, so nobody knows it while results
//! can still change. `client/aftermath/rules/audits.py` computes the same.

use super::{assignment, bitmap, committee, seeds};
use crate::{
    constants::{Bitmap, MAX_CASES, MAX_LEVELS, MAX_MEMBERS},
    state::{established_only, Members, Run},
};
use alloc::boxed::Box;

const AUDIT: &[u8] = b"audit";
/// Minimum number of equal votes that decide a case. A result whose jury is smaller is not drawn.
pub const MIN_VOTES: u32 = 3;
/// A case may be opened in this number of rounds after the round that recorded the result.
const OPENING_ROUNDS: usize = 2;

// SplitMix64, whose state is a hash of the seed.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST_FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND_FACTOR: u64 = 0x94d0_49bb_1331_11eb;

/// Return the seed of the draw among the results of the round `back` rounds before the current one.
///
/// None if it is not drawn yet, if the time to open cases is over, or if the run has no audits. An epoch's last trained
/// round has no such seed.
pub fn seed(run: &Run, back: usize) -> Option<u64> {
    let rounds_since = back.checked_sub(usize::from(run.config.overlap))?;
    if run.config.verification_percent == 0 || back > run.current().height as usize {
        return None;
    }
    match rounds_since {
        1 if run.seed_slot == 0 => Some(run.next_seed),
        OPENING_ROUNDS => Some(run.current().seed),
        _ => None,
    }
}

/// An audit of one result.
pub struct Audit {
    pub auditor: u8,
    pub jury: Bitmap,
}

/// The draw among the results of one round.
pub struct Draw<'a> {
    members: &'a Members,
    /// First state of the generator.
    state: u64,
    /// A result is drawn if the high half of its hash, times 100, is below this.
    threshold: u64,
    /// First position and length of the share of each seat.
    shares: Box<[[u16; 2]; MAX_MEMBERS]>,
    /// Members whose results were recorded, and members without a share.
    recorded: Bitmap,
    /// Members whose results are drawn in any case.
    newcomers: Bitmap,
    /// Members that may be elected as witnesses of the round.
    jurors: Bitmap,
    /// Number of jurors with each tier or a lower one.
    holders: [u32; MAX_LEVELS],
}

impl<'a> Draw<'a> {
    /// Prepare the draw among the results of the round `back` rounds before the current one, with its `seed`. `back`
    /// must be at least the run's overlap and at most 3.
    #[inline(never)]
    pub fn new(run: &Run, members: &'a Members, back: usize, seed: u64) -> Self {
        let round = &run.rounds[run.ring(back)];
        let recorder = &run.rounds[run.ring(back.saturating_sub(usize::from(run.config.overlap)))];
        let jurors = bitmap::both(&round.roster, &committee::electors(run, members, round));
        let newcomers = match round.established {
            established_only::NOTHING => [0; 32],
            _ => bitmap::without(&round.roster, &members.judges),
        };
        Self {
            members,
            state: seeds::of_purpose(seed, AUDIT),
            threshold: u64::from(run.config.verification_percent) << 32,
            shares: assignment::by_seat(round, &run.began, members),
            recorded: recorder.attested,
            newcomers,
            jurors,
            holders: count_holders(members, &jurors),
        }
    }

    /// Return the audit of the result of `target`, or None if that result was not drawn.
    #[inline(never)]
    pub fn audit(&self, target: u8) -> Option<Audit> {
        let number = hash(self.state, target);
        let is_newcomer = bitmap::has(&self.newcomers, target);
        let drawn = is_newcomer || self.is_below_threshold(number);
        let recorded = bitmap::has(&self.recorded, target) && self.is_auditable(target);
        if !drawn || !recorded || self.before(number, is_newcomer) >= MAX_CASES {
            return None;
        }
        let jury = self.jury(target);
        let index = ((number & u64::from(u32::MAX)).wrapping_mul(u64::from(bitmap::count(&jury)))) >> 32;
        bitmap::nth(&jury, index as u32).map(|auditor| Audit { auditor, jury })
    }

    fn is_below_threshold(&self, number: u64) -> bool {
        (number >> 32).wrapping_mul(100) < self.threshold
    }

    /// Return how many drawn results come before one with this hash: all newcomers before an established member, and
    /// lower hashes otherwise. Stop counting at `MAX_CASES`.
    fn before(&self, number: u64, is_newcomer: bool) -> usize {
        let mut count = 0;
        for index in 0..bitmap::WORDS {
            let mut recorded = bitmap::word(&self.recorded, index);
            let mut newcomers = bitmap::word(&self.newcomers, index);
            let mut seat = 64 * index;
            while recorded != 0 {
                if recorded & 1 == 1 {
                    let other = hash(self.state, seat as u8);
                    let comes_before = match newcomers & 1 == 1 {
                        true => !is_newcomer || other < number,
                        false => !is_newcomer && other < number && self.is_below_threshold(other),
                    };
                    if comes_before && self.is_auditable(seat as u8) {
                        count += 1;
                        if count == MAX_CASES {
                            return count;
                        }
                    }
                }
                recorded >>= 1;
                newcomers >>= 1;
                seat = seat.wrapping_add(1);
            }
        }
        count
    }

    /// Return the first position and the length of a member's share of the round.
    pub fn share(&self, seat: u8) -> [u16; 2] {
        self.shares[seat as usize]
    }

    /// Return whether a member had a share and its jury can decide a case.
    fn is_auditable(&self, target: u8) -> bool {
        let tier = self.members.seats[target as usize].tier as usize % MAX_LEVELS;
        let others = self.holders[tier].saturating_sub(u32::from(bitmap::has(&self.jurors, target)));
        self.share(target)[1] > 0 && others >= MIN_VOTES
    }

    /// Return the jurors that hold all levels of the target, without the target. Members that have left since stay in
    /// it, so that nobody can shrink a jury.
    fn jury(&self, target: u8) -> Bitmap {
        let tier = self.members.seats[target as usize].tier;
        let mut jury = self.jurors;
        bitmap::clear(&mut jury, target);
        for index in 0..bitmap::WORDS {
            let mut rest = bitmap::word(&jury, index);
            let mut kept = rest;
            let mut seat = 64 * index;
            let mut bit = 1u64;
            while rest != 0 {
                if self.members.seats[seat % MAX_MEMBERS].tier > tier {
                    kept &= !bit;
                }
                rest >>= 1;
                bit <<= 1;
                seat = seat.wrapping_add(1);
            }
            bitmap::set_word(&mut jury, index, kept);
        }
        jury
    }
}

/// Return, for each tier, how many members of `set` have it or a lower one.
#[inline(never)]
fn count_holders(members: &Members, set: &Bitmap) -> [u32; MAX_LEVELS] {
    let mut counts = [0u32; MAX_LEVELS];
    for index in 0..bitmap::WORDS {
        let mut rest = bitmap::word(set, index);
        let mut seat = 64 * index;
        while rest != 0 {
            let tier = members.seats[seat % MAX_MEMBERS].tier as usize % MAX_LEVELS;
            counts[tier] = counts[tier].wrapping_add((rest & 1) as u32);
            rest >>= 1;
            seat = seat.wrapping_add(1);
        }
    }
    for tier in 1..MAX_LEVELS {
        counts[tier] += counts[tier - 1];
    }
    counts
}

/// Return 64 pseudorandom bits of a seat: output `seat` of SplitMix64.
#[inline(always)]
fn hash(state: u64, seat: u8) -> u64 {
    let number = state.wrapping_add(STEP.wrapping_mul(u64::from(seat) + 1));
    let number = (number ^ number >> 30).wrapping_mul(FIRST_FACTOR);
    let number = (number ^ number >> 27).wrapping_mul(SECOND_FACTOR);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Round;
    use alloc::vec::Vec;
    use bytemuck::Zeroable;

    const PERCENT: u8 = 30;

    /// Return a run in round 2 whose members 0 to `count` - 1 delivered in round 0, and its members.
    fn at_round_two(count: u8, judges: u8, established: u8) -> (Box<Run>, Box<Members>) {
        let mut run = Box::new(Run::zeroed());
        let mut members = Box::new(Members::zeroed());
        let mut roster = [0; 32];
        for seat in 0..count {
            bitmap::set(&mut roster, seat);
            members.seats[seat as usize].weight = 1;
            members.seats[seat as usize].tier = seat % 2;
        }
        for seat in 0..judges {
            bitmap::set(&mut members.judges, seat);
        }
        run.config.verification_percent = PERCENT;
        run.config.overlap = 1;
        run.began = roster;
        run.head = 2;
        for (height, round) in run.rounds.iter_mut().enumerate().take(3) {
            *round = Round { roster, established, height: height as u32, batch: 1024, ..Round::zeroed() };
        }
        run.rounds[1].attested = roster;
        (run, members)
    }

    fn audits(run: &Run, members: &Members, seed: u64) -> Vec<(u8, Audit)> {
        let draw = Draw::new(run, members, 2, seed);
        (0..=u8::MAX).filter_map(|target| draw.audit(target).map(|audit| (target, audit))).collect()
    }

    #[test]
    fn hash_is_splitmix64() {
        // The first outputs of the reference implementation for the state 1234567.
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!(core::array::from_fn::<u64, 3, _>(|seat| hash(1234567, seat as u8)), expected);
    }

    #[test]
    fn drawn_share_is_the_percentage() {
        let (run, members) = at_round_two(20, 0, established_only::NOTHING);
        let drawn: usize = (0..400).map(|seed| audits(&run, &members, seed).len()).sum();
        assert!((2150..2500).contains(&drawn), "{drawn}"); // 2,400 without the limit of 8 per round
    }

    #[test]
    fn audits_have_jurors_that_hold_the_target() {
        let (run, members) = at_round_two(20, 0, established_only::NOTHING);
        for seed in 0..100 {
            let found = audits(&run, &members, seed);
            assert!(found.len() <= MAX_CASES);
            for (target, audit) in found {
                assert!(bitmap::has(&audit.jury, audit.auditor) && !bitmap::has(&audit.jury, target));
                let expected: u32 = if target % 2 == 0 { 9 } else { 19 };
                assert_eq!(bitmap::count(&audit.jury), expected);
            }
        }
    }

    #[test]
    fn newcomers_come_first() {
        let (run, members) = at_round_two(20, 14, established_only::WITNESS);
        for seed in 0..100 {
            let found = audits(&run, &members, seed);
            assert_eq!(found.iter().filter(|(target, _)| *target >= 14).count(), 6);
            assert!(found.iter().all(|(_, audit)| audit.auditor < 14));
        }
        let (run, members) = at_round_two(20, 8, established_only::WITNESS);
        assert!(audits(&run, &members, 7).iter().all(|(target, _)| *target >= 8));
    }

    #[test]
    fn unrecorded_results_and_small_juries_are_not_drawn() {
        let (mut run, members) = at_round_two(20, 6, established_only::WITNESS);
        run.rounds[1].attested = bitmap::only(19);
        let found = audits(&run, &members, 3);
        assert_eq!(found.iter().map(|(target, _)| *target).collect::<Vec<u8>>(), [19]);
        // Three judges of tier 0 judge newcomers of tier 0, but only two of them could judge the third.
        let (mut run, members) = at_round_two(20, 5, established_only::WITNESS);
        run.config.verification_percent = 100;
        run.rounds[1].attested = bitmap::only(0);
        assert!(audits(&run, &members, 3).is_empty());
    }

    #[test]
    fn seed_is_the_first_one_fixed_after_recording() {
        let (mut run, _) = at_round_two(4, 0, established_only::NOTHING);
        run.rounds[2].seed = 5;
        run.next_seed = 6;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None, None, Some(6), None]);
        run.seed_slot = 8;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None; 4]);
        run.config.overlap = 0;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None, None, Some(5), None]);
        run.seed_slot = 0;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None, Some(6), Some(5), None]);
        run.config.verification_percent = 0;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None; 4]);
    }
}
