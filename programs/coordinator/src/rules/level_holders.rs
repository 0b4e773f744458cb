//! Score which members have shown that they hold the levels of their tier, because declaring a tier proves nothing.
//!
//! A member has delivered a level if enough of the level's judges recorded its result. The judges are the witnesses
//! that hold the level; if established holders began the epoch, only these judge, so that newcomers cannot vouch for
//! each other. `agreement` decides which results are applied, `drops` who may be dropped.

use super::{agreement, availability, bitmap, levels, quorum, weights};
use crate::{constants::*, state::*};

/// The highest bit of a score (`Members::shown`); a score with this bit is at least `BALANCED`.
const BALANCED_BIT: usize = SHOWN_BITS - 1;
/// The score of a member that delivered its levels as often as not.
pub const BALANCED: u32 = 1 << BALANCED_BIT;
/// The initial score of a newcomer next to established holders: it must deliver more often than not.
pub const BELOW_BALANCED: u32 = BALANCED - 1;
/// A member may be dropped if its score is at least this much below `BALANCED`.
const OFTEN: u32 = 8;

/// Return the seats with a score of at least `BALANCED`: they delivered every level in at least half of the judged
/// rounds (newcomers next to established holders: in more than half).
pub fn in_half(members: &Members) -> &Bitmap {
    &members.shown[BALANCED_BIT]
}

/// Return the seats with a score of at most `BALANCED - OFTEN`.
pub fn often_incomplete(members: &Members) -> Bitmap {
    bitmap::without(&[0xff; 32], &weights::at_least(&members.shown, BALANCED - OFTEN + 1))
}

/// Return whether all scores of the `seats` in word `index` are at least `lowest` and less than `limit`.
#[inline(always)]
pub fn scores_between(members: &Members, index: usize, seats: u64, lowest: u32, limit: u32) -> bool {
    let mut at_least_lowest = u64::MAX;
    let mut at_least_limit = u64::MAX;
    for (bit, plane) in members.shown.iter().enumerate() {
        let plane = bitmap::word(plane, index);
        at_least_lowest = if lowest >> bit & 1 == 1 { plane & at_least_lowest } else { plane | at_least_lowest };
        at_least_limit = if limit >> bit & 1 == 1 { plane & at_least_limit } else { plane | at_least_limit };
    }
    seats & !at_least_lowest == 0 && (seats & at_least_limit == 0 || limit >> SHOWN_BITS != 0)
}

/// Return the seats that belong to the committees of their levels, even if they may not attest themselves: members that
/// delivered, and established members.
///
/// Members that left before the end of the first round do not belong to them, because they have no part in the epoch's
/// result. The set may contain established members that are not in the epoch.
pub fn seated(members: &Members) -> Bitmap {
    let mut seated = bitmap::either(&members.proven, &members.established);
    let gone = bitmap::without(&members.established, &bitmap::either(&members.proven, &members.healthy));
    for index in bitmap::seats(&gone) {
        if members.seats[index].exited_height == 0 {
            bitmap::clear(&mut seated, index as u8);
        }
    }
    seated
}

/// Fix the judges of an epoch that begins with this roster. Neither a drop nor an ejection changes them, because
/// members read them before they apply results, at different moments.
pub fn appoint(members: &mut Members, roster: &Bitmap) {
    members.judges = bitmap::both(&members.established, roster);
}

/// Set the initial scores when the rounds of an epoch begin. Next to established holders, newcomers begin at
/// `BELOW_BALANCED`. The levels of judges that left in the warm-up stay established, so that leaving early gives
/// newcomers no more votes than leaving later.
#[inline(never)]
pub fn begin(run: &mut Run, members: &mut Members) {
    let judges = bitmap::both(&members.judges, &members.healthy);
    let no_judges = bitmap::is_empty(&judges);
    run.levels_established = if no_judges { 0 } else { levels::held_by(run, members, &members.judges) };
    let newcomers = if no_judges { [0; 32] } else { bitmap::without(&members.healthy, &judges) };
    // The bits of 63 for newcomers, and of 64 for all others.
    members.shown = [newcomers; SHOWN_BITS];
    members.shown[BALANCED_BIT] = bitmap::without(&[0xff; 32], &newcomers);
}

/// Update the established members at the end of an epoch that the `healthy` members finished. Judges stay established
/// if they showed their levels while they were in the epoch. Judges that left are checked too, or only members that
/// stay would pay for hiding a level.
///
/// `keep_judges` keeps all judges established. Pass it if newcomers decided who delivered although the run has enough
/// established members. Otherwise newcomers could outvote the judges one by one until too few are left to undo an
/// epoch.
#[inline(never)]
pub fn end(members: &mut Members, healthy: &Bitmap, keep_judges: bool) {
    let judges = bitmap::both(&members.judges, &members.established);
    let failed = if keep_judges { [0; 32] } else { bitmap::without(&judges, in_half(members)) };
    if !bitmap::is_empty(&failed) {
        let lost = replaced(members, &judges, &failed);
        members.established = bitmap::without(&members.established, &lost);
    }
    members.established = bitmap::either(&members.established, &bitmap::both(&members.proven, healthy));
}

/// Return the `failed` judges that lose their status: others have shown the same levels, or they failed often. The only
/// holder of a level stays established if it failed in at most two rounds, as in an outage, which must not leave the
/// level to newcomers.
#[inline(never)]
fn replaced(members: &Members, judges: &Bitmap, failed: &Bitmap) -> Bitmap {
    let mut spared = [0; bitmap::WORDS];
    let mut succeeded = [0; bitmap::WORDS];
    for index in 0..bitmap::WORDS {
        let failed = bitmap::word(failed, index);
        succeeded[index] = bitmap::word(judges, index) & !failed;
        // Below 64, only 62 and 63 have all of the bits 1 to 5.
        spared[index] =
            members.shown[1..BALANCED_BIT].iter().fold(failed, |spared, plane| spared & bitmap::word(plane, index));
    }
    let mut lost = *failed;
    if spared == [0; bitmap::WORDS] {
        return lost;
    }
    for of_tier in &by_tier(members) {
        if (0..bitmap::WORDS).any(|index| bitmap::word(of_tier, index) & succeeded[index] != 0) {
            break;
        }
        for (index, spared) in spared.iter().enumerate() {
            let still_lost = bitmap::word(&lost, index) & !(bitmap::word(of_tier, index) & spared);
            bitmap::set_word(&mut lost, index, still_lost);
        }
    }
    lost
}

/// Return the seats of each tier.
#[inline(never)]
pub(super) fn by_tier(members: &Members) -> [Bitmap; MAX_LEVELS] {
    let mut result = [[0; 32]; MAX_LEVELS];
    for (byte, seats) in members.seats.chunks_exact(8).enumerate() {
        let Ok([a, b, c, d, e, f, g, h]) = <&[Seat; 8]>::try_from(seats) else { break };
        let mut put = |seat: &Seat, bit: u8| result[seat.tier as usize % MAX_LEVELS][byte] |= 1 << bit;
        put(a, 0); // unrolled: a loop costs twice as much
        put(b, 1);
        put(c, 2);
        put(d, 3);
        put(e, 4);
        put(f, 5);
        put(g, 6);
        put(h, 7);
        if h.used == 0 {
            break;
        }
    }
    result
}

/// Update the scores with the round that closed last. The first attestation of the next round does this, because
/// closing a round already costs as much as an instruction may. So the last round of an epoch does not count.
#[inline(never)]
pub fn judge(run: &Run, members: &mut Members, witnesses: &Witnesses) {
    let closed = &run.rounds[run.ring(1)];
    let (Some(judged), 1) = (run.judged(1), closed.made_step) else { return };
    let roster = &run.rounds[judged].roster;
    let count = (closed.attestations as usize).min(MAX_WITNESSES);
    let attestations = &witnesses.rounds[run.ring(1)].attestations[..count];
    let leading = &witnesses.leading;
    let columns = agreement::columns(roster);
    let disagreeing = agreement::disagreeing(leading, attestations, columns);
    let elected = u32::from(closed.elected);
    // If newcomers witness, the leading result may be the word of a third of the witnesses while others are late.
    let newcomers_witness = closed.established == established_only::NOTHING;
    let votes = ClosedVotes {
        attestations,
        disagreeing: disagreeing.as_slice(),
        fetched_by_all: availability::fetched_by_all(run, members, closed),
        newcomers_witness,
        absent: elected.saturating_sub(count as u32),
        roster: &closed.roster,
    };
    let records = records_by_tier(run, members, &votes, columns);
    // More than half must leave a member out: of two judges, the one that attests first must not take the other's vote.
    let majority = quorum::majority(elected);
    let left_out = quorum::left_out(attestations.iter(), majority);
    let threshold = if newcomers_witness { majority } else { quorum::of_round(closed, elected) };
    for index in 0..bitmap::WORDS {
        let in_round = bitmap::word(roster, index);
        if in_round == 0 {
            continue;
        }
        let mut judged_seats = 0u64;
        let mut recorded = 0u64;
        let mut lacking = 0u64;
        for (bit, seat) in members.seats[64 * index..64 * (index + 1)].iter().enumerate() {
            let of_tier = &records[seat.tier as usize % MAX_LEVELS];
            judged_seats |= u64::from(of_tier.judged) << bit;
            recorded |= of_tier.recorded[index] & 1 << bit;
            lacking |= of_tier.lacking[index] & 1 << bit;
        }
        let led = bitmap::word(&leading.participation, index) & in_round;
        let agreeing = votes.disagreeing.iter().map(|different| !different[index]);
        let delivered = quorum::count(agreeing, threshold) & led;
        // Members that owed nothing are attested; their scores do not change.
        let missing = in_round & !bitmap::word(&closed.attested, index);
        let missing = missing & !left_before(members, index, missing, run.rounds[judged].height);
        let undelivered = missing & !led & bitmap::word(&left_out, index);
        let has_result = if newcomers_witness { delivered } else { (missing | delivered) & led };
        let up = judged_seats & recorded & delivered;
        let down = judged_seats & undelivered | has_result & lacking;
        advance(&mut members.shown, index, up, down);
    }
}

/// Return the seats, of 64 with `missing` results, that left before the end of the round at `height`.
fn left_before(members: &Members, index: usize, missing: u64, height: u32) -> u64 {
    let mut rest = missing & !bitmap::word(&members.healthy, index);
    let mut left = 0;
    while rest != 0 {
        let bit = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        left |= u64::from(members.seats[64 * index + bit].exited_height <= height) << bit;
    }
    left
}

/// What the judges recorded of a level, and then of all levels of a tier.
#[derive(Clone, Copy)]
struct LevelRecord {
    /// A judge attested, or the level needs none.
    judged: bool,
    /// The seats whose leading result enough judges recorded.
    recorded: [u64; bitmap::WORDS],
    /// The seats whose leading result enough judges did not record.
    lacking: [u64; bitmap::WORDS],
}

/// The attestations of a closed round.
struct ClosedVotes<'a> {
    attestations: &'a [Attestation],
    /// For each attestation, the seats whose leading result it did not record.
    disagreeing: &'a [[u64; bitmap::WORDS]],
    /// Mask of the levels that all witnesses fetch (`availability`): they record a result only with these.
    fetched_by_all: u8,
    /// Newcomers are among the witnesses, and a majority of all decides what was delivered.
    newcomers_witness: bool,
    /// Number of elected witnesses that have not attested.
    absent: u32,
    /// The members of the closed round.
    roster: &'a Bitmap,
}

/// Return, for each tier, what the judges recorded of all its levels.
#[inline(never)]
fn records_by_tier(run: &Run, members: &Members, votes: &ClosedVotes, columns: usize) -> [LevelRecord; MAX_LEVELS] {
    let ClosedVotes { attestations, disagreeing, fetched_by_all, newcomers_witness, absent, roster } = *votes;
    let established = run.levels_established;
    let levels = (run.levels as usize).min(MAX_LEVELS);
    let none = LevelRecord { judged: false, recorded: [0; bitmap::WORDS], lacking: [0; bitmap::WORDS] };
    let mut records = [none; MAX_LEVELS];
    let mut planes = [[0u64; VOTE_PLANES]; bitmap::WORDS];
    let mut judges = 0u32;
    let mut voters = [0; 32];
    let mut next_tier = 0; // the smallest tier that is not counted yet
    for (level, record) in records.iter_mut().enumerate().take(levels) {
        let is_established = established >> level & 1 == 1;
        if is_established && (level == 0 || established >> (level - 1) & 1 == 0) {
            // From the first established level on, only established judges count.
            planes = [[0; VOTE_PLANES]; bitmap::WORDS];
            judges = 0;
            next_tier = 0;
        }
        for (attestation, disagreeing) in attestations.iter().zip(disagreeing) {
            let tier = members.seats[attestation.seat as usize].tier as usize;
            let may_judge = !is_established || bitmap::has(&members.judges, attestation.seat);
            if next_tier <= tier && tier <= level && may_judge {
                judges += 1;
                bitmap::set(&mut voters, attestation.seat);
                for (planes, different) in planes.iter_mut().zip(disagreeing).take(columns) {
                    add(planes, !different);
                }
            }
        }
        next_tier = level + 1;
        // A level without established holders needs no judge if other levels have some. Otherwise a wallet that alone
        // declares a tier would choose the rounds in which it is judged.
        let needs_no_judge = judges == 0 && !is_established && established != 0;
        // If all witnesses fetch the level, their quorum decides.
        let passes = needs_no_judge || fetched_by_all >> level & 1 == 1;
        // A level without established holders needs a majority of its holders, because a little over a third could deny
        // the others a quorum. An absent witness may hold the level, and counts as one that refused nobody.
        let absent =
            if is_established || absent == 0 { 0 } else { absent.min(silent_holders(members, roster, level, &voters)) };
        let needed_of = |judges| if is_established { quorum::of(judges) } else { quorum::majority(judges + absent) };
        // All members hold the last level, and a majority of them decides who delivered. So one of two judges suffices
        // there, or the other could keep every newcomer from being established.
        let is_last = level + 1 == levels;
        let one_suffices = is_established && newcomers_witness && is_last && judges == 2;
        let needed = if one_suffices { 1 } else { needed_of(judges) };
        record.judged = judges > 0 || passes;
        for (column, planes) in planes.iter().enumerate().take(columns) {
            if passes {
                record.recorded[column] = u64::MAX;
                continue;
            }
            // A judge that did not attest votes for itself. Otherwise one of two judges could take the other's status
            // by claiming to have received nothing.
            let eligible = if is_established { bitmap::word(&members.judges, column) } else { u64::MAX };
            let silent = eligible & !bitmap::word(&voters, column);
            let lacking_of = |own_votes| lacking(planes, judges, needed_of(judges + own_votes));
            record.lacking[column] = lacking_of(0) & !silent | lacking_of(1) & silent;
            record.recorded[column] = quorum::at_least(planes, needed);
        }
    }
    for level in (0..levels.saturating_sub(1)).rev() {
        let above = records[level + 1];
        let record = &mut records[level];
        record.judged &= above.judged;
        record.recorded.iter_mut().zip(above.recorded).for_each(|(word, above)| *word &= above);
        // Hiding a level from its judges counts even if another level of the tier has no judge.
        record.lacking.iter_mut().zip(above.lacking).for_each(|(word, above)| *word |= above);
    }
    records
}

/// Return how many members of a round hold a level and have not attested.
#[inline(never)]
fn silent_holders(members: &Members, roster: &Bitmap, level: usize, voters: &Bitmap) -> u32 {
    let silent = bitmap::without(roster, voters);
    bitmap::seats(&silent).filter(|seat| members.seats[*seat].tier as usize <= level).count() as u32
}

/// Return the seats whose leading result at least `needed` of the judges did not record.
fn lacking(planes: &[u64; VOTE_PLANES], judges: u32, needed: u32) -> u64 {
    !quorum::at_least(planes, (judges + 1).saturating_sub(needed))
}

/// Add one to the counters of these seats.
#[inline(always)]
pub(super) fn add(planes: &mut [u64; VOTE_PLANES], mut carry: u64) {
    for plane in planes.iter_mut() {
        if carry == 0 {
            break;
        }
        let digit = *plane;
        *plane = digit ^ carry;
        carry &= digit;
    }
}

/// Move the scores of 64 seats up or down by one. A score of 0 stays 0, and the highest score does not rise.
#[inline(never)]
fn advance(shown: &mut [Bitmap; SHOWN_BITS], index: usize, up: u64, down: u64) {
    let mut nonzero = 0;
    let mut highest = u64::MAX;
    for plane in shown.iter() {
        let digit = bitmap::word(plane, index);
        nonzero |= digit;
        highest &= digit;
    }
    let mut carry = up & nonzero & !highest;
    let mut borrow = down & nonzero;
    for plane in shown.iter_mut() {
        if carry | borrow == 0 {
            break;
        }
        let digit = bitmap::word(plane, index);
        bitmap::set_word(plane, index, digit ^ carry ^ borrow);
        carry &= digit;
        borrow &= !digit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    fn score(members: &Members, seat: u8) -> u32 {
        members.shown.iter().enumerate().map(|(bit, plane)| u32::from(bitmap::has(plane, seat)) << bit).sum()
    }

    #[test]
    fn advance_saturates_scores_at_both_ends() {
        let mut run = Run::zeroed();
        let mut members = Members::zeroed();
        run.levels = 3;
        members.seats[7].used = 1;
        members.established = bitmap::only(7);
        members.healthy = [0xff; 32];
        appoint(&mut members, &[0xff; 32]);
        begin(&mut run, &mut members);
        assert_eq!((score(&members, 7), score(&members, 8)), (64, 63));
        for (round, (first, second)) in [(65, 64), (66, 65), (67, 66)].into_iter().enumerate() {
            advance(&mut members.shown, 0, 3 << 7, 0);
            assert_eq!((score(&members, 7), score(&members, 8)), (first, second), "after {round}");
        }
        for _ in 0..100 {
            advance(&mut members.shown, 0, 1 << 7, 1 << 8);
        }
        assert_eq!((score(&members, 7), score(&members, 8), score(&members, 70)), (127, 0, 63));
        advance(&mut members.shown, 0, 1 << 8, 1 << 7);
        assert_eq!((score(&members, 7), score(&members, 8)), (126, 0));
    }

    /// Return which judges, given as tier and score relative to `BALANCED`, are established after the epoch.
    fn established_after(judges: &[(u8, i32)]) -> alloc::vec::Vec<bool> {
        let mut members = Members::zeroed();
        for (seat, (tier, shown)) in judges.iter().enumerate() {
            members.seats[seat].used = 1;
            members.seats[seat].tier = *tier;
            bitmap::set(&mut members.judges, seat as u8);
            for (bit, plane) in members.shown.iter_mut().enumerate() {
                if (BALANCED as i32 + shown) >> bit & 1 == 1 {
                    bitmap::set(plane, seat as u8);
                }
            }
        }
        members.established = members.judges;
        end(&mut members, &[0; 32], false); // all have gone
        (0..judges.len()).map(|seat| bitmap::has(&members.established, seat as u8)).collect()
    }

    #[test]
    fn end_keeps_judges_with_levels_nobody_else_showed() {
        assert_eq!(established_after(&[(0, 0), (0, -1), (1, 5)]), [true, false, true]);
        assert_eq!(established_after(&[(0, -1), (0, -2), (0, -3), (1, 0)]), [true, true, false, true]);
        assert_eq!(established_after(&[(0, -3), (1, -1), (2, -1)]), [false, true, true]);
        assert_eq!(established_after(&[(0, -1), (1, -1), (1, 0), (2, -1)]), [true, false, true, false]);
    }

    #[test]
    fn lacking_equals_counting_missing_votes() {
        for judges in 1..=MAX_WITNESSES as u32 {
            for recorded in 0..=judges {
                let mut planes = [0; VOTE_PLANES];
                (0..recorded).for_each(|_| add(&mut planes, 1));
                let without = judges - recorded;
                for needed in
                    [quorum::of(judges), quorum::of(judges + 1), quorum::majority(judges), quorum::majority(judges + 1)]
                {
                    assert_eq!(lacking(&planes, judges, needed) & 1 == 1, without >= needed);
                }
            }
        }
    }
}
