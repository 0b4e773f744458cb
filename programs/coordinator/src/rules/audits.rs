//! Draw which recorded results of a round are audited, and by whom.
//!
//! The draw follows from a seed whose slot is fixed after the results were recorded, so nobody knows it while results
//! can still change. `client/aftermath/rules/audits.py` computes the same.

use super::{assignment, bitmap, level_holders, seeds};
use crate::{
    constants::{Bitmap, MAX_CASES, MAX_LEVELS, MAX_MEMBERS},
    state::{Members, Run},
};
use alloc::boxed::Box;

const AUDIT: &[u8] = b"audit";
/// Minimum size of a jury. A result whose jury is smaller is not drawn: the other two of three could convict the accuser.
const MIN_JURY: u32 = 4;
/// Maximum number of drawn results, and of open cases, of each class. Otherwise newcomers could use up the audits of
/// established members.
pub const MAX_OF_CLASS: usize = MAX_CASES / 2;
/// A case may be opened in this number of rounds after the round that recorded the result.
pub const OPENING_ROUNDS: usize = 2;

// SplitMix64, whose state is a hash of the seed.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST_FACTOR: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND_FACTOR: u64 = 0x94d0_49bb_1331_11eb;

/// Return the seed of the draw among the results of the round `back` rounds before the current one.
///
/// None if it is not drawn yet, if the time to open cases is over, or if the epoch has no audits.
#[inline(never)]
pub fn seed(run: &Run, back: usize) -> Option<u64> {
    let rounds_since = back.checked_sub(usize::from(run.config.overlap))?;
    if !run.is_audited() || back > run.current().height as usize {
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

/// Newcomers or established members, among whose results some are drawn.
struct Class {
    /// Members whose results were recorded, and members without a share.
    recorded: Bitmap,
    /// A result is drawn if the high half of its hash, times 100, is below this.
    threshold: u64,
}

/// The draw among the results of one round, which only established members witnessed.
pub struct Draw<'a> {
    members: &'a Members,
    /// First state of the generator.
    state: u64,
    /// Members of the round.
    roster: Bitmap,
    /// First position and length of the share of each seat.
    shares: Box<[[u16; 2]; MAX_MEMBERS]>,
    classes: [Class; 2],
    /// For each tier, the judges of this or a lower tier number.
    jurors: [Bitmap; MAX_LEVELS],
    /// Number of seats in each entry of `jurors`.
    counts: [u32; MAX_LEVELS],
}

impl<'a> Draw<'a> {
    /// Prepare the draw among the results of the round `back` rounds before the current one, with its `seed`. `back`
    /// must be at least the run's overlap and at most 3.
    #[inline(never)]
    pub fn new(run: &Run, members: &'a Members, back: usize, seed: u64) -> Self {
        let round = &run.rounds[run.ring(back)];
        let recorder = &run.rounds[run.ring(back.saturating_sub(usize::from(run.config.overlap)))];
        let recorded = bitmap::both(&round.roster, &recorder.attested);
        let newcomers = Class { recorded: bitmap::without(&recorded, &members.judges), threshold: u64::MAX };
        let established = Class {
            recorded: bitmap::both(&recorded, &members.judges),
            threshold: u64::from(run.config.verification_percent) << 32,
        };
        let mut jurors = level_holders::by_tier(members);
        let mut counts = [0; MAX_LEVELS];
        let mut lower = [0; 32];
        for (holders, count) in jurors.iter_mut().zip(&mut counts) {
            *count = add_holders(&mut lower, holders, &members.judges);
            *holders = lower;
        }
        Self {
            members,
            state: seeds::of_purpose(seed, AUDIT),
            roster: round.roster,
            shares: assignment::by_seat(round, &run.began, members),
            classes: [newcomers, established],
            jurors,
            counts,
        }
    }

    /// Return the audit of the result of `target`, or None if that result was not drawn.
    #[inline(never)]
    pub fn audit(&self, target: u8) -> Option<Audit> {
        let class = self.classes.iter().find(|class| bitmap::has(&class.recorded, target))?;
        let number = hash(self.state, target);
        if !self.may_be_drawn(class, target, number) || self.before(class, number) >= MAX_OF_CLASS {
            return None;
        }
        let mut jury = self.jurors[self.tier(target)];
        bitmap::clear(&mut jury, target);
        let present = bitmap::both(&jury, &self.roster);
        let index = ((number & u64::from(u32::MAX)).wrapping_mul(u64::from(bitmap::count(&present)))) >> 32;
        bitmap::nth(&present, index as u32).map(|auditor| Audit { auditor, jury })
    }

    /// Count the class's drawable results with a lower hash than `number`. Stop at `MAX_OF_CLASS`.
    fn before(&self, class: &Class, number: u64) -> usize {
        let mut count = 0;
        for index in 0..bitmap::WORDS {
            let mut recorded = bitmap::word(&class.recorded, index);
            let mut seat = 64 * index;
            while recorded != 0 {
                if recorded & 1 == 1 {
                    let other = hash(self.state, seat as u8);
                    if other < number && self.may_be_drawn(class, seat as u8, other) {
                        count += 1;
                        if count == MAX_OF_CLASS {
                            return count;
                        }
                    }
                }
                recorded >>= 1;
                seat = seat.wrapping_add(1);
            }
        }
        count
    }

    /// Return whether the hash of a member's result is low enough, the member had a share, and its jury can decide a
    /// case. Judges that left stay jurors. Otherwise a small coalition could become two thirds of the jury as others
    /// leave.
    #[inline(never)]
    fn may_be_drawn(&self, class: &Class, target: u8, number: u64) -> bool {
        let tier = self.tier(target);
        let others = self.counts[tier].saturating_sub(u32::from(bitmap::has(&self.jurors[tier], target)));
        (number >> 32).wrapping_mul(100) < class.threshold && self.share(target)[1] > 0 && others >= MIN_JURY
    }

    /// Return the first position and the length of a member's share of the round.
    pub fn share(&self, seat: u8) -> [u16; 2] {
        self.shares[seat as usize]
    }

    fn tier(&self, seat: u8) -> usize {
        self.members.seats[seat as usize].tier as usize % MAX_LEVELS
    }
}

/// Add the judges of one tier to `lower`, the judges of lower tier numbers. Return the new size of `lower`. It is not
/// inlined, because the compiler would unroll the loop over the tiers.
#[inline(never)]
fn add_holders(lower: &mut Bitmap, holders: &Bitmap, judges: &Bitmap) -> u32 {
    *lower = bitmap::either(lower, &bitmap::both(holders, judges));
    bitmap::count(lower)
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
    use crate::state::{established_only, Round};
    use alloc::vec::Vec;
    use bytemuck::Zeroable;

    const PERCENT: u8 = 30;

    /// Return a run in round 2 whose members 0 to `count` - 1 delivered in round 0, and its members. The first `judges`
    /// of them witness.
    fn at_round_two(count: u8, judges: u8) -> (Box<Run>, Box<Members>) {
        let mut run = Box::new(Run::zeroed());
        let mut members = Box::new(Members::zeroed());
        let mut roster = [0; 32];
        for seat in 0..count {
            bitmap::set(&mut roster, seat);
            members.seats[seat as usize].used = 1;
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
            *round = Round {
                roster,
                established: established_only::WITNESS,
                height: height as u32,
                batch: 1024,
                ..Round::zeroed()
            };
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
    fn fraction_of_drawn_results_is_the_percentage() {
        let (run, members) = at_round_two(10, 10);
        let drawn: usize = (0..400).map(|seed| audits(&run, &members, seed).len()).sum();
        assert!((1020..1200).contains(&drawn), "{drawn}"); // 1,200 without the limit of 4 per round
    }

    #[test]
    fn jurors_hold_all_levels_of_target() {
        let (run, members) = at_round_two(20, 20);
        for seed in 0..100 {
            let found = audits(&run, &members, seed);
            assert!(found.len() <= MAX_OF_CLASS);
            for (target, audit) in found {
                assert!(bitmap::has(&audit.jury, audit.auditor) && !bitmap::has(&audit.jury, target));
                let expected: u32 = if target % 2 == 0 { 9 } else { 19 };
                assert_eq!(bitmap::count(&audit.jury), expected);
            }
        }
    }

    #[test]
    fn judges_that_left_before_the_round_are_jurors() {
        let (mut run, members) = at_round_two(10, 10);
        for round in &mut run.rounds {
            round.roster = bitmap::without(&round.roster, &bitmap::only(9));
        }
        let found: Vec<(u8, Audit)> = (0..100).flat_map(|seed| audits(&run, &members, seed)).collect();
        for (target, audit) in &found {
            assert!(*target < 9);
            assert_eq!(bitmap::has(&audit.jury, 9), members.seats[*target as usize].tier == 1);
            assert_ne!(audit.auditor, 9);
        }
        assert!(found.iter().any(|(_, audit)| bitmap::has(&audit.jury, 9)));
    }

    #[test]
    fn newcomers_are_always_drawn_up_to_four() {
        for (judges, newcomers) in [(17, 3), (8, 4)] {
            let (run, members) = at_round_two(20, judges);
            for seed in 0..100 {
                let found = audits(&run, &members, seed);
                assert_eq!(found.iter().filter(|(target, _)| *target >= judges).count(), newcomers);
                assert!(found.iter().all(|(_, audit)| audit.auditor < judges));
            }
        }
    }

    #[test]
    fn newcomers_do_not_displace_established_members() {
        let drawn = |count: u8| {
            let (run, members) = at_round_two(count, 8);
            let of_judges = |seed| audits(&run, &members, seed).iter().filter(|(target, _)| *target < 8).count();
            (0..100).map(of_judges).collect::<Vec<usize>>()
        };
        assert_eq!(drawn(40), drawn(8));
    }

    #[test]
    fn unrecorded_results_and_small_juries_are_not_drawn() {
        let (mut run, members) = at_round_two(20, 8);
        run.rounds[1].attested = bitmap::only(19);
        let found = audits(&run, &members, 3);
        assert_eq!(found.iter().map(|(target, _)| *target).collect::<Vec<u8>>(), [19]);
        // Four judges of tier 0 judge newcomers of tier 0, but only three of them could judge the fourth.
        let (mut run, members) = at_round_two(20, 7);
        run.config.verification_percent = 100;
        run.rounds[1].attested = bitmap::only(0);
        assert!(audits(&run, &members, 3).is_empty());
    }

    #[test]
    fn seed_is_the_first_one_fixed_after_recording() {
        let (mut run, _) = at_round_two(4, 4);
        run.rounds[2].seed = 5;
        run.next_seed = 6;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None, None, Some(6), None]);
        run.seed_slot = 8;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None; 4]);
        run.config.overlap = 0;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None, None, Some(5), None]);
        run.seed_slot = 0;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None, Some(6), Some(5), None]);
        run.rounds[2].established = established_only::NOTHING;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None; 4]);
        run.rounds[2].established = established_only::WITNESS;
        run.config.verification_percent = 0;
        assert_eq!([0, 1, 2, 3].map(|back| seed(&run, back)), [None; 4]);
    }
}
