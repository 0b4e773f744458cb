//! Who has shown that it holds the levels of its tier, and whose word decides that.
//!
//! Declaring a tier proves nothing. A member has delivered a level if enough of the level's judges recorded its result. The
//! judges are the witnesses that hold the level; if established members that hold it began the epoch, only these are,
//! so that newcomers cannot vouch for each other. A round without judges counts neither for nor against a member.
//! `agreement` says which results are applied, `convicted` who is dropped.

use super::{agreement, availability, bitmap, levels, quorum, weights};
use crate::{constants::*, state::*};

/// The bit of the count of a member that has shown nothing yet.
const BALANCED_BIT: usize = SHOWN_BITS - 1;
pub const BALANCED: u32 = 1 << BALANCED_BIT;
/// The first count of a newcomer to established members: it has to show more than it owes.
pub const BELOW_BALANCED: u32 = BALANCED - 1;
/// A member is dropped after failing to deliver whole levels in this many rounds more than it delivered them.
const OFTEN: u32 = 8;

/// Return the seats that delivered every level in at least half of the rounds in which that was judged.
pub fn in_half(members: &Members) -> &Bitmap {
    &members.shown[BALANCED_BIT]
}

/// Return the seats that failed to deliver every level in `OFTEN` more of the judged rounds than they delivered them.
pub fn often_incomplete(members: &Members) -> Bitmap {
    bitmap::without(&[0xff; 32], &weights::at_least(&members.shown, BALANCED - OFTEN + 1))
}

/// Return whether the counts of a word of seats are at least `lowest`, and below `above`.
#[inline(always)]
pub fn between(members: &Members, (index, seats): (usize, u64), lowest: u32, above: u32) -> bool {
    let (mut enough, mut more) = (u64::MAX, u64::MAX);
    for (bit, plane) in members.shown.iter().enumerate() {
        let plane = bitmap::word(plane, index);
        enough = if lowest >> bit & 1 == 1 { plane & enough } else { plane | enough };
        more = if above >> bit & 1 == 1 { plane & more } else { plane | more };
    }
    seats & !enough == 0 && (seats & more == 0 || above >> SHOWN_BITS != 0)
}

/// Return the seats that count in a level's committee, whether or not they may speak themselves: members that delivered, and
/// established members. Members that left before the end of the first round do not count: they have no part in what
/// the epoch made. The result may name established members that are not in the epoch.
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

/// Fix who judges in an epoch that begins with this roster. Members apply results at different moments and read this
/// before, so neither a drop nor an ejection changes it.
pub fn appoint(members: &mut Members, roster: &Bitmap) {
    members.judges = bitmap::both(&members.established, roster);
}

/// Begin the counts of an epoch, when its rounds begin. Next to established holders, newcomers begin one below the others.
/// Judges that left in the warm-up keep their levels: leaving then must give newcomers no more votes than leaving later.
#[inline(never)]
pub fn begin(run: &mut Run, members: &mut Members) {
    let judges = bitmap::both(&members.judges, &members.healthy);
    let none = bitmap::is_empty(&judges);
    run.levels_established = if none { 0 } else { levels::held_by(run, members, &members.judges) };
    let below = if none { [0; 32] } else { bitmap::without(&members.healthy, &judges) };
    members.shown = [below; SHOWN_BITS]; // one below
    members.shown[BALANCED_BIT] = bitmap::without(&[0xff; 32], &below);
}

/// End an epoch that the `healthy` members finished. Its judges stay established if they showed their levels for as long as
/// they were in it. This includes judges that have left, or hiding a level would cost only members that stay.
#[inline(never)]
pub fn end(members: &mut Members, healthy: &Bitmap) {
    let judges = bitmap::both(&members.judges, &members.established);
    let failed = bitmap::without(&judges, in_half(members));
    if !bitmap::is_empty(&failed) {
        let lost = replaced(members, &judges, &failed);
        members.established = bitmap::without(&members.established, &lost);
    }
    members.established = bitmap::either(&members.established, &bitmap::both(&members.proven, healthy));
}

/// Return the `failed` judges whose levels other judges have shown. The only holder of a level keeps its word if it failed
/// in at most two rounds, like a member that is cut off: an outage must not leave the level to newcomers.
#[inline(never)]
fn replaced(members: &Members, judges: &Bitmap, failed: &Bitmap) -> Bitmap {
    let (mut spared, mut shown) = ([0; bitmap::WORDS], [0; bitmap::WORDS]);
    for index in 0..bitmap::WORDS {
        let failed = bitmap::word(failed, index);
        shown[index] = bitmap::word(judges, index) & !failed;
        // 62 and 63 have all digits in between
        spared[index] =
            members.shown[1..BALANCED_BIT].iter().fold(failed, |spared, plane| spared & bitmap::word(plane, index));
    }
    let mut lost = *failed;
    if spared == [0; bitmap::WORDS] {
        return lost;
    }
    for of_tier in &by_tier(members) {
        if (0..bitmap::WORDS).any(|index| bitmap::word(of_tier, index) & shown[index] != 0) {
            break;
        }
        for (index, spared) in spared.iter().enumerate() {
            let left = bitmap::word(&lost, index) & !(bitmap::word(of_tier, index) & spared);
            bitmap::set_word(&mut lost, index, left);
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
        let mut put = |seat: &Seat, place: u8| result[seat.tier as usize % MAX_LEVELS][byte] |= 1 << place;
        put(a, 0); // unrolled: a loop costs as much again
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

/// Count the round that closed last. The first attestation of the next round does this, because closing a round costs as
/// much as an instruction may. So the last round of an epoch is not counted.
#[inline(never)]
pub fn judge(run: &Run, members: &mut Members, witnesses: &Witnesses) {
    let closed = &run.rounds[run.ring(1)];
    let (Some(judged), 1) = (run.judged(1), closed.made_step) else { return };
    let roster = &run.rounds[judged].roster;
    let count = (closed.attestations as usize).min(MAX_WITNESSES);
    let attestations = &witnesses.rounds[run.ring(1)].attestations[..count];
    let (leading, columns) = (&witnesses.leading, agreement::columns(roster));
    let disagreeing = agreement::disagreeing(leading, attestations, columns);
    let by_all = availability::had_by_all(run, members, closed);
    let elected = u32::from(closed.elected);
    let absent = elected.saturating_sub(count as u32);
    // Where newcomers are witnesses, what leads may be the word of a third of them while others are late.
    let by_all_members = closed.established == established_only::NOTHING;
    let disagreeing = disagreeing.as_slice();
    let views = Views { attestations, disagreeing, by_all, by_all_members, absent, roster: &closed.roster };
    let whole = recorded(run, members, &views, columns);
    // One of two judges that attests first must not take the other's vote: more than half must leave a member out.
    let majority = quorum::majority(elected);
    let left_out = quorum::left_out(attestations.iter(), majority);
    let least = if by_all_members { majority } else { quorum::of_round(closed, elected) };
    for index in 0..bitmap::WORDS {
        let in_round = bitmap::word(roster, index);
        if in_round == 0 {
            continue;
        }
        let (mut known, mut all, mut lacking) = (0u64, 0u64, 0u64);
        for (bit, seat) in members.seats[64 * index..64 * (index + 1)].iter().enumerate() {
            let of_tier = &whole[seat.tier as usize % MAX_LEVELS];
            known |= u64::from(of_tier.judged) << bit;
            all |= of_tier.recorded[index] & 1 << bit;
            lacking |= of_tier.lacking[index] & 1 << bit;
        }
        let led = bitmap::word(&leading.participation, index) & in_round;
        let agreeing = disagreeing.iter().map(|different| !different[index]);
        let delivered = quorum::count(agreeing, least) & led;
        // who owed nothing is attested, and counts neither way
        let missing = in_round & !bitmap::word(&closed.attested, index);
        let missing = missing & !left_before(members, index, missing, run.rounds[judged].height);
        let undelivered = missing & !led & bitmap::word(&left_out, index);
        let known_result = if by_all_members { delivered } else { (missing | delivered) & led };
        let (up, down) = (known & all & delivered, known & undelivered | known_result & lacking);
        advance(&mut members.shown, index, up, down);
    }
}

/// Return those of 64 seats with `missing` results that had left before that round was over.
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
struct Whole {
    /// A judge attested, or the level needs none.
    judged: bool,
    /// The seats whose leading result enough judges recorded.
    recorded: [u64; bitmap::WORDS],
    /// The seats whose leading result enough judges did not record.
    lacking: [u64; bitmap::WORDS],
}

/// The attestations of a closed round.
struct Views<'a> {
    attestations: &'a [Attestation],
    /// For each attestation, the seats whose leading result it did not record.
    disagreeing: &'a [[u64; bitmap::WORDS]],
    /// The levels that a quorum of the witnesses had, as bits.
    by_all: u8,
    /// Newcomers are among the witnesses, and a majority of all decides what was delivered.
    by_all_members: bool,
    /// Elected witnesses that have not attested.
    absent: u32,
    /// The members of the closed round.
    roster: &'a Bitmap,
}

#[inline(never)]
fn recorded(run: &Run, members: &Members, views: &Views, columns: usize) -> [Whole; MAX_LEVELS] {
    let Views { attestations, disagreeing, by_all, by_all_members, absent, roster } = *views;
    let (established, levels) = (run.levels_established, (run.levels as usize).min(MAX_LEVELS));
    let none = Whole { judged: false, recorded: [0; bitmap::WORDS], lacking: [0; bitmap::WORDS] };
    let mut whole = [none; MAX_LEVELS];
    let (mut planes, mut judges, mut spoken) = ([[0u64; VOTE_PLANES]; bitmap::WORDS], 0u32, [0; 32]);
    let mut least = 0; // the smallest tier that is not counted yet
    for (level, of_level) in whole.iter_mut().enumerate().take(levels) {
        let known = established >> level & 1 == 1;
        if known && (level == 0 || established >> (level - 1) & 1 == 0) {
            (planes, judges, least) = ([[0; VOTE_PLANES]; bitmap::WORDS], 0, 0);
            // only these from here on
        }
        for (one, disagreeing) in attestations.iter().zip(disagreeing) {
            let tier = members.seats[one.seat as usize].tier as usize;
            if least <= tier && tier <= level && (!known || bitmap::has(&members.judges, one.seat)) {
                judges += 1;
                bitmap::set(&mut spoken, one.seat);
                for (planes, different) in planes.iter_mut().zip(disagreeing).take(columns) {
                    add(planes, !different);
                }
            }
        }
        least = level + 1;
        // A level that nobody has shown needs no judge where larger levels have some: else a wallet that alone declares a
        // tier would choose in which rounds it is judged.
        let unheard = judges == 0 && !known && established != 0;
        // All witnesses had the level, so their quorum decides.
        let passed = unheard || by_all >> level & 1 == 1;
        // A level that nobody has shown takes a majority of its holders: one more than a third of them could keep the others
        // from a quorum. An absent witness may hold the level, and counts as one that has not refused anybody.
        let absent =
            if known || absent == 0 { 0 } else { absent.min(unheard_holders(members, roster, level, &spoken)) };
        let enough = |judges| if known { quorum::of(judges) } else { quorum::majority(judges + absent) };
        // All hold the last level, and a majority of all says who delivered. So one of two judges is enough there: the
        // other could keep every newcomer from its word.
        let is_last = level + 1 == levels;
        let of_two = known && by_all_members && is_last && judges == 2;
        let needed = if of_two { 1 } else { enough(judges) };
        of_level.judged = judges > 0 || passed;
        for (column, planes) in planes.iter().enumerate().take(columns) {
            let may = if known { bitmap::word(&members.judges, column) } else { u64::MAX };
            if passed {
                of_level.recorded[column] = u64::MAX;
                continue;
            }
            // A judge that did not attest has its own word: of two, one could else take the other's by saying it got nothing.
            let silent = may & !bitmap::word(&spoken, column);
            let lacked = |own| lacking(planes, judges, enough(judges + own));
            of_level.lacking[column] = lacked(0) & !silent | lacked(1) & silent;
            of_level.recorded[column] = quorum::at_least(planes, needed);
        }
    }
    for level in (0..levels.saturating_sub(1)).rev() {
        let above = whole[level + 1];
        let of_level = &mut whole[level];
        of_level.judged &= above.judged;
        of_level.recorded.iter_mut().zip(above.recorded).for_each(|(word, above)| *word &= above);
        // hiding a level from its judges counts also if another level has none
        of_level.lacking.iter_mut().zip(above.lacking).for_each(|(word, above)| *word |= above);
    }
    whole
}

/// Return how many members of a round hold a level and have not attested.
#[inline(never)]
fn unheard_holders(members: &Members, roster: &Bitmap, level: usize, spoken: &Bitmap) -> u32 {
    let unheard = bitmap::without(roster, spoken);
    bitmap::seats(&unheard).filter(|seat| members.seats[*seat].tier as usize <= level).count() as u32
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

/// Move the counts of 64 seats one up or down. A count of 0 stays, and the highest one does not rise.
#[inline(never)]
fn advance(shown: &mut [Bitmap; SHOWN_BITS], index: usize, up: u64, down: u64) {
    let (mut any, mut full) = (0, u64::MAX);
    for plane in shown.iter() {
        let digit = bitmap::word(plane, index);
        (any, full) = (any | digit, full & digit);
    }
    let (mut carry, mut borrow) = (up & any & !full, down & any);
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

    fn value(members: &Members, seat: u8) -> u32 {
        members.shown.iter().enumerate().map(|(bit, plane)| u32::from(bitmap::has(plane, seat)) << bit).sum()
    }

    #[test]
    fn what_is_shown_is_counted_between_its_ends() {
        let (mut run, mut members) = (Run::zeroed(), Members::zeroed());
        run.levels = 3;
        members.seats[7].used = 1;
        members.established = bitmap::only(7);
        members.healthy = [0xff; 32];
        appoint(&mut members, &[0xff; 32]);
        begin(&mut run, &mut members);
        assert_eq!((value(&members, 7), value(&members, 8)), (64, 63));
        for (round, (first, second)) in [(65, 64), (66, 65), (67, 66)].into_iter().enumerate() {
            advance(&mut members.shown, 0, 3 << 7, 0);
            assert_eq!((value(&members, 7), value(&members, 8)), (first, second), "after {round}");
        }
        for _ in 0..100 {
            advance(&mut members.shown, 0, 1 << 7, 1 << 8);
        }
        assert_eq!((value(&members, 7), value(&members, 8), value(&members, 70)), (127, 0, 63));
        advance(&mut members.shown, 0, 1 << 8, 1 << 7);
        assert_eq!((value(&members, 7), value(&members, 8)), (126, 0));
    }

    /// The judges of an epoch with what they have shown, and the members that are established after it.
    fn kept(judges: &[(u8, i32)]) -> alloc::vec::Vec<bool> {
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
        end(&mut members, &[0; 32]); // all have gone
        (0..judges.len()).map(|seat| bitmap::has(&members.established, seat as u8)).collect()
    }

    #[test]
    fn a_judge_is_one_again_if_it_has_shown_its_levels_or_nobody_else_has() {
        assert_eq!(kept(&[(0, 0), (0, -1), (1, 5)]), [true, false, true]);
        assert_eq!(kept(&[(0, -1), (0, -2), (0, -3), (1, 0)]), [true, true, false, true]);
        assert_eq!(kept(&[(0, -3), (1, -1), (2, -1)]), [false, true, true]);
        assert_eq!(kept(&[(0, -1), (1, -1), (1, 0), (2, -1)]), [true, false, true, false]);
    }

    #[test]
    fn enough_holders_count_against_a_member() {
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
