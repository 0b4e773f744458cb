//! Who has shown that it holds the levels of its tier.
//!
//! Declaring a tier proves nothing. A member delivers a level of its result if a quorum of those who hold the level, of
//! the witnesses that attested, recorded it: the others could not tell. Of several that hold a level, those judge who
//! delivered all of theirs in an epoch before (they are established), so that newcomers cannot vouch for each other; where
//! the epoch began with none, all do. A round that nobody can judge counts neither for nor against a member. By the word
//! of the same witnesses members apply a level of a result, at any time in the epoch: so who judges is fixed when it
//! begins.
//!
//! The witnesses of a round are counted by level when the first one of the next round attests, since closing a round costs
//! as much as an instruction may. So the last one of an epoch is not counted.

use super::{agreement, bitmap, levels, merit, quorum};
use crate::{constants::*, state::*};

/// Where nothing has been shown yet.
const EVEN: usize = SHOWN_BITS - 1;
/// In so many rounds more than not a member must have failed to deliver whole levels before it is dropped for that.
const OFTEN: u32 = 8;

/// The seats that delivered every level in at least half of the rounds in which that was judged.
pub fn in_half(members: &Members) -> &Bitmap {
    &members.shown[EVEN]
}

/// The seats that failed to deliver every level in `OFTEN` rounds more than they did it, of those in which that was judged.
pub fn often_incomplete(members: &Members) -> Bitmap {
    bitmap::without(&[0xff; 32], &merit::at_least(&members.shown, (1 << EVEN) - OFTEN + 1))
}

/// Those who began the epoch and are of the ones that say what its levels contain, although they may not speak themselves.
/// Whoever left before the first round was over has no part in what the epoch made of them. Also of those who are in no
/// epoch there may be some.
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

/// Fixes who judges in an epoch that begins with this roster. Neither a drop nor an ejection changes that.
pub fn appoint(members: &mut Members, roster: &Bitmap) {
    members.judges = bitmap::both(&members.established, roster);
}

/// Begins the counts of an epoch, with its rounds. Whoever comes to holders that are established has to show more than it
/// owes.
#[inline(never)]
pub fn begin(run: &mut Run, members: &mut Members) {
    let judges = bitmap::both(&members.judges, &members.healthy);
    run.levels_established = levels::held_by(run, members, &judges);
    let even = if bitmap::is_empty(&judges) { members.healthy } else { judges };
    members.shown = [bitmap::without(&members.healthy, &even); SHOWN_BITS]; // one below
    members.shown[EVEN] = even;
}

/// An epoch is over that `healthy` members finished.
pub fn end(members: &mut Members, healthy: &Bitmap) {
    let failed = bitmap::without(healthy, in_half(members));
    let kept = bitmap::without(&members.established, &failed);
    members.established = bitmap::either(&kept, &bitmap::both(&members.proven, healthy));
}

/// Counts the round that has closed last.
#[inline(never)]
pub fn judge(run: &Run, members: &mut Members, witnesses: &Witnesses) {
    let closed = &run.rounds[run.ring(1)];
    let (Some(judged), 1) = (run.judged(1), closed.made_step) else { return };
    let roster = &run.rounds[judged].roster;
    let count = (closed.attestations as usize).min(MAX_WITNESSES);
    let attestations = &witnesses.rounds[run.ring(1)].attestations[..count];
    let (leading, columns) = (&witnesses.leading, agreement::columns(roster));
    let disagreeing = agreement::disagreeing(leading, attestations, columns);
    let whole = recorded(run, members, (attestations, &disagreeing), columns);
    let quorum = quorum::of(u32::from(closed.elected));
    for index in 0..bitmap::WORDS {
        let in_round = bitmap::word(roster, index);
        if in_round == 0 {
            continue;
        }
        let (mut known, mut all) = (0u64, 0u64);
        for (bit, seat) in members.seats[64 * index..64 * (index + 1)].iter().enumerate() {
            let (judged, recorded) = &whole[seat.tier as usize % MAX_LEVELS];
            known |= u64::from(*judged) << bit;
            all |= recorded[index] & 1 << bit;
        }
        // who owed nothing is attested too, and not counted here
        let delivered = quorum::count(disagreeing.iter().map(|different| !different[index]), quorum)
            & bitmap::word(&leading.participation, index)
            & in_round;
        let missing = in_round & !bitmap::word(&closed.attested, index);
        let (up, down) = (known & all & delivered, known & (missing | delivered & !all));
        advance(&mut members.shown, index, up, down);
    }
}

/// For each tier whether its levels could all be judged, and the seats of which enough judges of each recorded what leads.
type Whole = [(bool, [u64; bitmap::WORDS]); MAX_LEVELS];

#[inline(never)]
fn recorded(
    run: &Run,
    members: &Members,
    (attestations, disagreeing): (&[Attestation], &[[u64; bitmap::WORDS]]),
    columns: usize,
) -> Whole {
    let (established, levels) = (run.levels_established, (run.levels as usize).min(MAX_LEVELS));
    let mut whole: Whole = [(false, [0; bitmap::WORDS]); MAX_LEVELS];
    let (mut planes, mut judges) = ([[0u64; VOTE_PLANES]; bitmap::WORDS], 0u32);
    let mut least = 0; // the smallest tier that is not counted yet
    for (level, (judged, words)) in whole.iter_mut().enumerate().take(levels) {
        let known = established >> level & 1 == 1;
        if known && (level == 0 || established >> (level - 1) & 1 == 0) {
            (planes, judges, least) = ([[0; VOTE_PLANES]; bitmap::WORDS], 0, 0);
            // only these from here on
        }
        for (one, disagreeing) in attestations.iter().zip(disagreeing) {
            let tier = members.seats[one.seat as usize].tier as usize;
            if least <= tier && tier <= level && (!known || bitmap::has(&members.judges, one.seat)) {
                judges += 1;
                for (planes, different) in planes.iter_mut().zip(disagreeing).take(columns) {
                    add(planes, !different);
                }
            }
        }
        least = level + 1;
        *judged = judges > 0;
        for (column, word) in words.iter_mut().enumerate().take(columns) {
            *word = quorum::at_least(&planes[column], quorum::of(judges));
        }
    }
    for level in (0..levels.saturating_sub(1)).rev() {
        let (judged, above) = whole[level + 1];
        whole[level].0 &= judged;
        whole[level].1.iter_mut().zip(above).for_each(|(word, above)| *word &= above);
    }
    whole
}

/// Adds one to the counters of these seats.
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

/// Moves the counts of 64 seats one up or down; those at the bottom stay there, and those at the top do not rise.
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
}
