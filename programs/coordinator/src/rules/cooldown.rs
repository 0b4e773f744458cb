//! The cooldown at the end of an epoch: members state the hashes of their levels until a quorum agrees on each.
//!
//! If a judge of a level delivered and stayed to the end of the rounds, only judges attest that level; one suffices. If
//! all judges have left, newcomers attest too, or their work would be lost with the judges.

use super::{bitmap, checkpoints, committee, level_holders, provisional, quorum, sequence, weights, Machine, Moment};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

/// A member's statement: one hash per set bit of the mask, ascending by level.
pub struct Statement<'a> {
    pub seat: u8,
    pub mask: u8,
    pub hashes: &'a [Hash],
}

/// The committees that attest the levels: up to 32 members for each level.
struct Committees {
    /// Number of members of each committee.
    counts: [u8; MAX_LEVELS],
    /// Bitmask of the positions whose members have gone.
    gone: [u32; MAX_LEVELS],
    /// Bitmask of the positions whose members are newcomers to a level with established holders.
    new: [u32; MAX_LEVELS],
    /// The position of the asked member in each committee, or `ABSENT`.
    positions: [u8; MAX_LEVELS],
}

/// What `elect` returns besides the sizes of the committees. Each part costs compute units.
struct Query {
    /// The member whose positions are filled in.
    asked: Option<u8>,
    /// Mask of the levels for which `gone` and `new` are filled in.
    watched: u8,
}

/// The levels whose committees have room, as one byte per level.
struct OpenLevels {
    /// The first level that only judges attest.
    judged_from: usize,
    /// The levels below this one are open to all holders.
    end_for_all: usize,
    /// The levels from `judged_from` to below this one are open to judges.
    end_for_judges: usize,
    /// A byte of 1 for each level that is open to a newcomer.
    to_all: u64,
    /// A byte of 1 for each level that is open to a judge.
    to_judges: u64,
    /// For the last open level of either kind, the bit that its counter sets when the committee is full.
    full: u64,
}

impl OpenLevels {
    fn new(judged_from: usize, end_for_all: usize, end_for_judges: usize) -> Self {
        let to_all = each(end_for_all);
        let only_judges = each(end_for_judges) & !each(judged_from);
        let has_judged = end_for_judges > judged_from;
        let judged_full = if has_judged { full_at(end_for_judges) } else { 0 };
        Self {
            judged_from,
            end_for_all,
            end_for_judges: if has_judged { end_for_judges } else { end_for_all },
            to_all,
            to_judges: to_all | only_judges,
            full: full_at(end_for_all) | judged_full,
        }
    }

    /// Close the levels whose committees are full. A level has at least the holders of the one below, so the last open
    /// level of each kind fills first.
    fn close(&mut self, counts: u64) {
        while counts & self.full != 0 {
            let mut end_for_all = self.end_for_all;
            let mut end_for_judges = self.end_for_judges;
            if end_for_judges > self.judged_from && counts & full_at(end_for_judges) != 0 {
                end_for_judges -= 1;
            } else {
                end_for_all -= 1;
            }
            *self = Self::new(self.judged_from, end_for_all, end_for_judges);
        }
    }
}

/// The position of a member that is not in a committee.
const ABSENT: u8 = u8::MAX;
/// One in each byte.
const EACH: u64 = u64::from_le_bytes([1; MAX_LEVELS]);

/// Return a byte of 1 for each of the first `levels` levels.
fn each(levels: usize) -> u64 {
    EACH.checked_shr(8 * (MAX_LEVELS - levels) as u32).unwrap_or(0)
}

/// Return the bit that the counter of the last of the first `levels` levels sets when its committee is full.
fn full_at(levels: usize) -> u64 {
    if levels == 0 {
        return 0;
    }
    (MAX_WITNESSES as u64) << (8 * (levels - 1))
}

/// Return the byte of a level.
fn level_byte(bytes: u64, level: usize) -> u8 {
    (bytes >> (8 * level)) as u8
}

/// Return the mask of the levels that healthy members hold. A tier holds its own level and all higher ones.
fn held(run: &Run, members: &Members) -> u8 {
    super::levels::held_by(run, members, &members.healthy)
}

/// Return the first level held by a judge that delivered and was there when the cooldown began. Only judges attest this
/// level and all higher ones.
#[inline(never)]
fn first_judged(run: &Run, members: &Members, levels: usize) -> usize {
    let last_height = run.current().height;
    let mut lowest = levels;
    for index in bitmap::seats(&bitmap::both(&members.judges, &members.proven)) {
        let tier = members.seats[index].tier as usize;
        let stayed = bitmap::has(&members.healthy, index as u8) || members.seats[index].exited_height > last_height;
        if tier < lowest && stayed {
            lowest = tier;
            if lowest == 0 {
                break;
            }
        }
    }
    lowest
}

/// Return the first level that newcomers may not attest, because an established holder is missing: it was dropped,
/// restarted, or was in the last epoch and not in this one. Such a level goes back to the durable checkpoint.
///
/// Otherwise newcomers could replace the levels of members that they had dropped or outvoted, or that return late from
/// an outage.
#[inline(never)]
fn first_withheld(run: &Run, members: &Members, levels: usize) -> usize {
    let absent = bitmap::without(&members.established, &run.began);
    let gone = bitmap::without(&members.judges, &members.healthy);
    let absent = bitmap::either(&absent, &gone);
    if bitmap::is_empty(&absent) || !provisional::is_at_risk(members) {
        return levels;
    }
    let mut lowest = levels;
    for index in bitmap::seats(&absent) {
        let seat = &members.seats[index];
        let missing = if bitmap::has(&run.began, index as u8) {
            matches!(seat.state, member_state::DROPPED | member_state::RESTARTED)
        } else {
            seat.last_epoch.saturating_add(1) >= run.epoch
        };
        if missing {
            lowest = lowest.min(seat.tier as usize);
        }
    }
    lowest
}

/// Elect a committee for each level: the first 32 members, in the cooldown order, that have shown that they hold it.
///
/// Members that have gone keep their positions, so that too few remaining members cannot attest anything. Nothing in a
/// cooldown changes the committees.
#[inline(never)]
fn elect(run: &Run, members: &Members, query: &Query) -> Committees {
    let Query { asked, watched } = *query;
    let (by_rank, _) = bitmap::by_rank(&run.began);
    let mut seated = level_holders::seated(members);
    let levels = run.levels.min(MAX_LEVELS as u8) as usize;
    let mut judged_from = first_judged(run, members, levels);
    let mut end_for_all = levels;
    if judged_from == 0 {
        // Only judges are seated, so no level needs to be reserved for them.
        seated = bitmap::both(&seated, &members.judges);
        judged_from = levels;
    } else {
        end_for_all = judged_from.min(first_withheld(run, members, levels));
    }
    let mut open = OpenLevels::new(judged_from, end_for_all, levels);
    let mut committees = Committees {
        counts: [0; MAX_LEVELS],
        gone: [0; MAX_LEVELS],
        new: [0; MAX_LEVELS],
        positions: [ABSENT; MAX_LEVELS],
    };
    // Most holders only need to be counted.
    let mut counted_only = seated;
    if watched != 0 {
        counted_only = bitmap::both(&counted_only, &members.healthy);
    }
    if run.levels_established & watched != 0 {
        counted_only = bitmap::both(&counted_only, &members.established);
    }
    if judged_from < levels {
        counted_only = bitmap::both(&counted_only, &members.judges);
    }
    if let Some(seat) = asked {
        bitmap::clear(&mut counted_only, seat);
    }
    let mut counts = 0u64; // a byte for each level
    for rank in committee::order(run.current(), &run.began, committee::COOLDOWN).ranks() {
        let holder = by_rank[*rank as usize];
        let tier = members.seats[holder as usize].tier as usize;
        let mut open_levels = open.to_judges;
        let mut end = open.end_for_judges;
        if tier >= end {
            continue;
        }
        if !bitmap::has(&counted_only, holder) {
            if !bitmap::has(&seated, holder) {
                continue;
            }
            let is_asked = asked == Some(holder);
            let reported = if is_asked { u8::MAX } else { watched };
            let gone = u32::from(!bitmap::has(&members.healthy, holder));
            let new = if bitmap::has(&members.established, holder) { 0 } else { run.levels_established };
            if judged_from < levels && !bitmap::has(&members.judges, holder) {
                open_levels = open.to_all;
                end = open.end_for_all;
            }
            for level in tier..end {
                if reported >> level & 1 == 0 || level_byte(open_levels, level) == 0 {
                    continue;
                }
                let position = level_byte(counts, level);
                if is_asked {
                    committees.positions[level] = position;
                }
                committees.gone[level] |= gone << position;
                committees.new[level] |= u32::from(new >> level & 1) << position;
            }
        }
        counts = counts.wrapping_add(open_levels & EACH << (8 * tier));
        if counts & open.full != 0 {
            open.close(counts);
            if open.to_judges == 0 {
                break;
            }
        }
    }
    committees.counts = counts.to_le_bytes();
    committees
}

/// Store a member's statement about the levels whose committees it is in. Attest each level on whose hash a quorum of
/// its committee now agrees.
#[inline(never)]
pub fn attest(run: &mut Run, members: &Members, witnesses: &mut Witnesses, statement: &Statement) -> Result<()> {
    require!(bitmap::has(&members.proven, statement.seat), CoordinatorError::NotElected);
    let committees = elect(run, members, &Query { asked: Some(statement.seat), watched: 0 });
    let mut elected = false;
    let mut hashes = statement.hashes.iter();
    for level in (0..MAX_LEVELS).filter(|level| statement.mask >> level & 1 == 1) {
        let hash = *hashes.next().ok_or(CoordinatorError::HashesInvalid)?;
        // These two values stand for no contents.
        let is_content = hash != UNSTATED && hash != super::levels::UNATTESTED;
        require!(is_content, CoordinatorError::HashesInvalid);
        let position = committees.positions[level];
        let Some(entry) = witnesses.cooldown[level].get_mut(position as usize) else { continue };
        require!(*entry == UNSTATED, CoordinatorError::DuplicateWitness);
        *entry = hash;
        elected = true;
        settle(run, witnesses, level, committees.counts[level], &hash);
    }
    require!(elected, CoordinatorError::NotElected);
    Ok(())
}

/// The entry of a committee member that has not attested.
const UNSTATED: Hash = [0; 32];

/// Compare all words without a branch or a call, which would cost more than the comparison: each level has 32 entries.
#[inline(always)]
fn is_equal(left: &Hash, right: &Hash) -> bool {
    let differ = |index: usize| bitmap::word(left, index) ^ bitmap::word(right, index);
    differ(0) | differ(1) | differ(2) | differ(3) == 0
}

#[inline(always)]
fn is_unstated(hash: &Hash) -> bool {
    let word = |index: usize| bitmap::word(hash, index);
    word(0) | word(1) | word(2) | word(3) == 0
}

/// Attest `level` if a quorum of its committee agrees with the newest statement about it.
fn settle(run: &mut Run, witnesses: &Witnesses, level: usize, elected: u8, newest: &Hash) {
    if run.levels_attested >> level & 1 == 1 {
        return;
    }
    let agreeing = witnesses.cooldown[level].iter().take(elected as usize).filter(|hash| is_equal(hash, newest));
    if agreeing.count() as u32 >= quorum::of(u32::from(elected)) {
        record(run, &witnesses.backlog, level, *newest);
    }
}

/// Record the attested hash of a level.
fn record(run: &mut Run, backlog: &Backlog, level: usize, hash: Hash) {
    run.level_hashes[level] = hash;
    run.levels_attested |= 1 << level;
    run.attested_step = run.step;
    run.attested_data_index = checkpoints::first_untrained(run, backlog);
}

/// Return the hash of `level` on which all statements agree, if at least half of its committee made one. More than half
/// is needed if a member has gone without a statement and a newcomer to the level made one.
fn undisputed(witnesses: &Witnesses, level: usize, committees: &Committees) -> Option<Hash> {
    let elected = usize::from(committees.counts[level]);
    let mut first_hash = None;
    let mut silent = 0u32; // the positions without a statement
    let mut twice_silent = 0usize; // twice their number
    for (position, hash) in witnesses.cooldown[level].iter().enumerate().take(elected) {
        if is_unstated(hash) {
            silent |= 1 << position;
            twice_silent += 2;
            if twice_silent > elected {
                return None;
            }
        } else if !is_equal(hash, first_hash.get_or_insert(hash)) {
            return None;
        }
    }
    let needs_more = committees.gone[level] & silent != 0 && committees.new[level] & !silent != 0;
    first_hash.filter(|_| twice_silent + usize::from(needs_more) <= elected).copied()
}

impl Machine<'_> {
    /// Start the cooldown. Levels that may have changed must be attested again, including those that nobody holds any
    /// more.
    #[inline(never)]
    pub fn start_cooldown(&mut self, moment: &Moment) {
        weights::fix_attesters(self.members);
        provisional::confirm(self.run, self.members);
        let trained = super::levels::trained(self.run, self.members);
        for level in (0..MAX_LEVELS).filter(|level| trained >> level & 1 == 1) {
            self.run.level_hashes[level] = super::levels::UNATTESTED;
        }
        self.run.levels_attested &= !trained;
        self.witnesses.cooldown = [[UNSTATED; MAX_WITNESSES]; MAX_LEVELS];
        sequence::bump(&mut self.run.members_seq); // clients compute the committees from the members
        self.enter(run_state::COOLDOWN, moment);
    }

    /// Attest the levels that are undisputed when the time is up, and return the mask of the unknown levels.
    ///
    /// So absent holders do not cost the run a level on which the others agree. If a holder disagrees, a quorum is
    /// still needed. A level is unknown if the epoch changed it, nobody attested it, and at least half of its committee
    /// has gone.
    #[inline(never)]
    pub fn conclude(&mut self, time_is_up: bool) -> u8 {
        let open = super::levels::all(self.run.levels) & !self.run.levels_attested;
        if open == 0 {
            return 0;
        }
        let committees = elect(self.run, self.members, &Query { asked: None, watched: open });
        let mut unknown = 0;
        let made_step = self.run.step != self.run.start_step;
        for level in (0..MAX_LEVELS).filter(|level| open >> level & 1 == 1) {
            let hash = if time_is_up { undisputed(self.witnesses, level, &committees) } else { None };
            if let Some(hash) = hash {
                record(self.run, &self.witnesses.backlog, level, hash);
            } else if 2 * committees.gone[level].count_ones() >= u32::from(committees.counts[level]) {
                unknown |= u8::from(made_step && self.run.level_hashes[level] == super::levels::UNATTESTED) << level;
            }
        }
        unknown
    }

    /// Return whether every held level is attested and in the durable checkpoint, so that the cooldown may end. With
    /// audits it never ends early: judges audit the last rounds and vote meanwhile.
    #[inline(never)]
    pub fn epoch_is_safe(&self) -> bool {
        if self.run.is_audited() {
            return false;
        }
        if self.run.attested_step != self.run.step || self.model.checkpoint_step != self.run.step {
            return false;
        }
        let held = held(self.run, self.members);
        held != 0 && held & !self.run.levels_attested == 0
    }
}
