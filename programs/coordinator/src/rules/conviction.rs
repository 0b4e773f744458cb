//! Whom the witnesses of the round that closed last convict: by a quorum of all, or by those who hold a level.
//!
//! That no quorum held a result is not enough: witnesses that are too few, or one that lies among exactly a quorum, are
//! no evidence against anybody. Nor are the votes of those who have gone since: who is dropped leaves the number that
//! a quorum is of, and only a quorum that remains may take it from there. Where a config has fewer witnesses elected than
//! there could be, it is a quorum of those that could be: one or two of many would now and then be all that are drawn.
//!
//! Most of the witnesses cannot tell whether a level was delivered that they do not hold. So a level has judges of its
//! own, the established ones of `holders`, and what newcomers say convicts nobody: two that declare a tier would be most
//! of its holders where there is one other. A quorum of the judges that are left convicts, in which an established
//! member that is accused has its own word, and one word alone only where a level has no other established holder. As one
//! round's trouble is nobody's guilt, it also takes that the member has failed to deliver whole levels in several rounds
//! more than it delivered them.

use super::{bitmap, committee, level_holders, quorum};
use crate::{constants::*, state::*};

/// Rounds before the current one: the round that has closed last.
pub const LAST: usize = 1;

pub struct Convicted {
    /// A quorum of all that could be witnesses did without what they owed.
    pub absent: Bitmap,
    /// This number of holders of a level did, and often before.
    pub incomplete: Bitmap,
}

/// Members of the `judged` round that may be dropped.
#[inline(never)]
pub fn convicted(run: &Run, members: &Members, witnesses: &Witnesses, judged: usize) -> Convicted {
    let ring = run.ring(LAST);
    let (roster, judges) = (&run.rounds[judged].roster, &run.rounds[ring]);
    let count = (judges.attestations as usize).min(MAX_WITNESSES);
    let attestations = &witnesses.rounds[ring].attestations[..count];
    let remaining = attestations.iter().filter(|one| members.seats[one.seat as usize].state == member_state::HEALTHY);
    let quorum = quorum::of_round(judges, u32::from(judges.elected));
    let missing = bitmap::without(roster, &judges.attested);
    let of_jury = quorum::of_round(judges, committee::jury(run, members, judges));
    let absent = bitmap::both(&missing, &quorum::left_out(remaining.clone(), of_jury));
    let mut result = Convicted { absent, incomplete: [0; 32] };
    let suspected = bitmap::both(&level_holders::often_incomplete(members), roster);
    if bitmap::is_empty(&suspected) || (remaining.clone().count() as u32) < quorum {
        return result;
    }
    // a member that owed nothing is attested, and recorded by nobody
    let owing = bitmap::either(&missing, &quorum::tally(attestations.iter(), quorum));
    let lacking = lacking(run, members, remaining);
    for index in bitmap::seats(&bitmap::both(&suspected, &owing)) {
        if bitmap::has(&lacking[members.seats[index].tier as usize % MAX_LEVELS], index as u8) {
            bitmap::set(&mut result.incomplete, index as u8);
        }
    }
    result
}

/// For each tier the seats that enough judges of one of its levels did without.
#[inline(never)]
fn lacking<'a>(
    run: &Run,
    members: &Members,
    remaining: impl Iterator<Item = &'a Attestation> + Clone,
) -> [Bitmap; MAX_LEVELS] {
    let levels = (run.levels as usize).min(MAX_LEVELS);
    let (mut result, mut planes) = ([[0; 32]; MAX_LEVELS], [[0u64; VOTE_PLANES]; bitmap::WORDS]);
    let established = bitmap::both(&members.established, &run.began);
    let (mut judges, mut all, mut spoken) = (0u32, 0u32, [0; 32]);
    let of_tier = by_tier(members, &established);
    for level in 0..levels {
        all += of_tier[level];
        for one in remaining.clone() {
            if members.seats[one.seat as usize].tier as usize == level && bitmap::has(&established, one.seat) {
                judges += 1;
                bitmap::set(&mut spoken, one.seat);
                for (index, planes) in planes.iter_mut().enumerate() {
                    level_holders::add(planes, !bitmap::word(&one.participation, index));
                }
            }
        }
        let least = all.min(2);
        for (index, planes) in planes.iter().enumerate() {
            let silent = bitmap::word(&established, index) & !bitmap::word(&spoken, index);
            let others = quorum::at_least(planes, quorum::of(judges).max(least));
            let itself = quorum::at_least(planes, quorum::of(judges + 1).max(least));
            bitmap::set_word(&mut result[level], index, others & !silent | itself & silent);
        }
    }
    for level in (0..levels.saturating_sub(1)).rev() {
        result[level] = bitmap::either(&result[level], &result[level + 1]);
    }
    result
}

/// How many of a set there are of each tier.
fn by_tier(members: &Members, set: &Bitmap) -> [u32; MAX_LEVELS] {
    let mut counts = [0; MAX_LEVELS];
    for index in bitmap::seats(set) {
        counts[members.seats[index].tier as usize % MAX_LEVELS] += 1;
    }
    counts
}
