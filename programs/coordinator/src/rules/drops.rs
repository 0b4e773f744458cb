//! Which members may be dropped for what they did not deliver in the last judged round.
//!
//! A member that delivered nothing may be dropped if a quorum of the witnesses that are still healthy says so. Most
//! witnesses cannot tell whether a level was delivered, so the established holders of a level decide who often misses
//! it.

use super::{bitmap, committee, level_holders, quorum};
use crate::{constants::*, state::*};

/// Rounds before the current one: the round that has closed last.
pub const LAST: usize = 1;

/// Members that may be dropped.
pub struct Droppable {
    /// A quorum of the possible witnesses (`committee::drop_electorate`) received nothing from them.
    pub absent: Bitmap,
    /// A quorum of the holders of a level did not receive it from them, and they missed levels often before.
    pub incomplete: Bitmap,
}

/// Return the members of the round at ring index `judged` that may be dropped.
///
/// A result that no quorum holds is not enough: too few witnesses, or one liar in an exact quorum, prove nothing. A
/// quorum must leave the member out. Votes of members that have gone do not count, because a drop lowers the number
/// that the next quorum is computed from.
#[inline(never)]
pub fn droppable(run: &Run, members: &Members, witnesses: &Witnesses, judged: usize) -> Droppable {
    let ring = run.ring(LAST);
    let roster = &run.rounds[judged].roster;
    let judging = &run.rounds[ring];
    let count = (judging.attestations as usize).min(MAX_WITNESSES);
    let attestations = &witnesses.rounds[ring].attestations[..count];
    let remaining = attestations.iter().filter(|one| members.seats[one.seat as usize].state == member_state::HEALTHY);
    let quorum = quorum::of_round(judging, u32::from(judging.elected));
    let missing = bitmap::without(roster, &judging.attested);
    let drop_quorum = quorum::of_round(judging, committee::drop_electorate(run, members, judging));
    let absent = bitmap::both(&missing, &quorum::left_out(remaining.clone(), drop_quorum));
    let mut result = Droppable { absent, incomplete: [0; 32] };
    let suspected = bitmap::both(&level_holders::often_incomplete(members), roster);
    if bitmap::is_empty(&suspected) || (remaining.clone().count() as u32) < quorum {
        return result;
    }
    // A member that owed nothing is attested although no witness recorded a result of it.
    let owing = bitmap::either(&missing, &quorum::tally(attestations.iter(), quorum));
    let lacking = lacking(run, members, remaining);
    for index in bitmap::seats(&bitmap::both(&suspected, &owing)) {
        if bitmap::has(&lacking[members.seats[index].tier as usize % MAX_LEVELS], index as u8) {
            bitmap::set(&mut result.incomplete, index as u8);
        }
    }
    result
}

/// Return, for each tier, the seats that withheld one of the tier's levels: enough judges of that level did not receive
/// it from them.
///
/// Newcomers do not judge: two that declare a tier could have its only other holder dropped. An established member votes
/// for itself if it did not attest. One judge decides alone only if the level has no other established holder.
#[inline(never)]
fn lacking<'a>(
    run: &Run,
    members: &Members,
    remaining: impl Iterator<Item = &'a Attestation> + Clone,
) -> [Bitmap; MAX_LEVELS] {
    let levels = (run.levels as usize).min(MAX_LEVELS);
    let mut result = [[0; 32]; MAX_LEVELS];
    let mut planes = [[0u64; VOTE_PLANES]; bitmap::WORDS];
    let established = bitmap::both(&members.established, &run.began);
    let mut judges = 0u32;
    let mut holders = 0u32;
    let mut voters = [0; 32];
    let holders_of_tier = count_by_tier(members, &established);
    for level in 0..levels {
        holders += holders_of_tier[level];
        for attestation in remaining.clone() {
            let tier = members.seats[attestation.seat as usize].tier as usize;
            if tier == level && bitmap::has(&established, attestation.seat) {
                judges += 1;
                bitmap::set(&mut voters, attestation.seat);
                for (index, planes) in planes.iter_mut().enumerate() {
                    level_holders::add(planes, !bitmap::word(&attestation.participation, index));
                }
            }
        }
        let minimum = holders.min(2);
        for (index, planes) in planes.iter().enumerate() {
            let silent = bitmap::word(&established, index) & !bitmap::word(&voters, index);
            let by_judges = quorum::at_least(planes, quorum::of(judges).max(minimum));
            let despite_own_vote = quorum::at_least(planes, quorum::of(judges + 1).max(minimum));
            bitmap::set_word(&mut result[level], index, by_judges & !silent | despite_own_vote & silent);
        }
    }
    for level in (0..levels.saturating_sub(1)).rev() {
        result[level] = bitmap::either(&result[level], &result[level + 1]);
    }
    result
}

/// Return how many members of a set have each tier.
fn count_by_tier(members: &Members, set: &Bitmap) -> [u32; MAX_LEVELS] {
    let mut counts = [0; MAX_LEVELS];
    for index in bitmap::seats(set) {
        counts[members.seats[index].tier as usize % MAX_LEVELS] += 1;
    }
    counts
}
