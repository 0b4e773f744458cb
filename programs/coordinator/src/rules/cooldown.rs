//! The end of an epoch: members state what their levels contain until a quorum agrees on each.
//!
//! What a level contains is what those say who had shown in an epoch before that they hold it (`Members::judges`), if one
//! of them has delivered in this one and stayed to the end of its rounds: newcomers, however many, first deliver for an
//! epoch. A single one is believed, as it is where it holds the level alone. If all such have left, newcomers have a word,
//! or what these trained would be lost with the others.

use super::{bitmap, checkpoints, committee, level_holders, provisional, quorum, sequence, weights, Machine, Moment};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

/// What a member states: one hash per set bit of the mask, ascending.
pub struct Stated<'a> {
    pub seat: u8,
    pub mask: u8,
    pub hashes: &'a [Hash],
}

/// Who attests the levels: up to 32 members for each.
struct Committees {
    /// Members of each.
    counts: [u8; MAX_LEVELS],
    /// Places in each of members that have gone.
    gone: [u32; MAX_LEVELS],
    /// Places in each of members that are new to a level which others have shown that they hold.
    new: [u32; MAX_LEVELS],
    /// The place of the asked member in each; `ABSENT` where it has none.
    places: [u8; MAX_LEVELS],
}

/// What is wanted of the committees besides their sizes, since it costs.
struct Wanted {
    /// The member whose places are.
    asked: Option<u8>,
    /// The levels of which it is who is gone and who is new.
    watched: u8,
}

/// The levels whose committees have room, a byte of one for each.
struct Open {
    /// The first level of which judges alone speak.
    judged: usize,
    /// Of the levels before that one, and of those from it on, these are open: up to there.
    ends: (usize, usize),
    /// Open to all, and to judges.
    to_all: u64,
    to_judges: u64,
    /// What the last open level of either kind has in its byte when its committee is full, and not before.
    full: u64,
}

impl Open {
    fn new(judged: usize, ends: (usize, usize)) -> Self {
        let (to_all, more) = (each(ends.0), each(ends.1) & !each(judged));
        let full = if ends.1 > judged { full_at(ends.1) } else { 0 };
        let ends = if judged < ends.1 { ends } else { (ends.0, ends.0) }; // the others are closed
        Self { judged, ends, to_all, to_judges: to_all | more, full: full_at(ends.0) | full }
    }

    /// Closes what is full: every level has at least the holders of the one below, so the last one of a kind comes first.
    fn close(&mut self, counts: u64) {
        while counts & self.full != 0 {
            let (mut all, mut judges) = self.ends;
            if judges > self.judged && counts & full_at(judges) != 0 {
                judges -= 1;
            } else {
                all -= 1;
            }
            *self = Self::new(self.judged, (all, judges));
        }
    }
}

const ABSENT: u8 = u8::MAX;
/// One in each byte.
const EACH: u64 = u64::from_le_bytes([1; MAX_LEVELS]);

/// One in the bytes of the first `open` levels.
fn each(open: usize) -> u64 {
    EACH.checked_shr(8 * (MAX_LEVELS - open) as u32).unwrap_or(0)
}

/// What the last of the first `open` levels has in its byte when its committee is full, and not before.
fn full_at(open: usize) -> u64 {
    if open == 0 {
        return 0;
    }
    (MAX_WITNESSES as u64) << (8 * (open - 1))
}

fn of_level(counts: u64, level: usize) -> u8 {
    (counts >> (8 * level)) as u8
}

/// Levels of which a healthy member of the last round holds a copy. A tier holds its own level and all higher ones.
fn held(run: &Run, members: &Members) -> u8 {
    super::levels::held_by(run, members, &members.healthy)
}

/// The first level that a judge holds who has delivered and was there when the cooldown began: of it, and of all that
/// follow, judges alone speak.
#[inline(never)]
fn first_judged(run: &Run, members: &Members, levels: usize) -> usize {
    let (last, mut least) = (run.current().height, levels);
    for index in bitmap::seats(&bitmap::both(&members.judges, &members.proven)) {
        let tier = members.seats[index].tier as usize;
        let stayed = bitmap::has(&members.healthy, index as u8) || members.seats[index].exited_height > last;
        if tier < least && stayed {
            least = tier;
            if least == 0 {
                break;
            }
        }
    }
    least
}

/// Return the first level of which newcomers say nothing, because an established member that holds it is missing: it was
/// dropped or restarted, or was in the last epoch and not in this one. Newcomers could otherwise replace the levels
/// of members that they had dropped or outvoted, or that return from an outage after others. Such a level goes back to the
/// durable checkpoint.
#[inline(never)]
fn first_withheld(run: &Run, members: &Members, levels: usize) -> usize {
    let absent = bitmap::without(&members.established, &run.began);
    let gone = bitmap::without(&members.judges, &members.healthy);
    let absent = bitmap::either(&absent, &gone);
    let mut least = levels;
    if bitmap::is_empty(&absent) || !provisional::is_at_risk(members) {
        return least;
    }
    for index in bitmap::seats(&absent) {
        let seat = &members.seats[index];
        let missing = if bitmap::has(&run.began, index as u8) {
            matches!(seat.state, member_state::DROPPED | member_state::RESTARTED)
        } else {
            seat.last_epoch.saturating_add(1) >= run.epoch
        };
        if missing {
            least = least.min(seat.tier as usize);
        }
    }
    least
}

/// Elects for each level, in the cooldown order, the first 32 of those who have shown that they hold it, now or in an
/// epoch before, whether or not they are still here: too few who are left say nothing that is new. Nothing in cooldown
/// changes who that is.
#[inline(never)]
fn elect(run: &Run, members: &Members, wanted: &Wanted) -> Committees {
    let Wanted { asked, watched } = *wanted;
    let (by_rank, _) = bitmap::by_rank(&run.began);
    let mut seated = level_holders::seated(members);
    let levels = run.levels.min(MAX_LEVELS as u8) as usize;
    let mut judged = first_judged(run, members, levels);
    let mut open_to_all = levels;
    if judged == 0 {
        seated = bitmap::both(&seated, &members.judges);
        judged = levels; // all who are left speak of all that they hold
    } else {
        open_to_all = judged.min(first_withheld(run, members, levels));
    }
    let mut open = Open::new(judged, (open_to_all, levels));
    let mut committees = Committees {
        counts: [0; MAX_LEVELS],
        gone: [0; MAX_LEVELS],
        new: [0; MAX_LEVELS],
        places: [ABSENT; MAX_LEVELS],
    };
    // of most holders there is nothing to say but that they are one more
    let mut plain = seated;
    if watched != 0 {
        plain = bitmap::both(&plain, &members.healthy);
    }
    if run.levels_established & watched != 0 {
        plain = bitmap::both(&plain, &members.established);
    }
    if judged < levels {
        plain = bitmap::both(&plain, &members.judges);
    }
    if let Some(seat) = asked {
        bitmap::clear(&mut plain, seat);
    }
    let mut counts = 0u64; // a byte for each level
    for rank in committee::order(run.current(), &run.began, committee::COOLDOWN).ranks() {
        let holder = by_rank[*rank as usize];
        let first = members.seats[holder as usize].tier as usize;
        let (mut add, mut last) = (open.to_judges, open.ends.1);
        if first >= last {
            continue;
        }
        if !bitmap::has(&plain, holder) {
            if !bitmap::has(&seated, holder) {
                continue;
            }
            let is_asked = asked == Some(holder);
            let told = if is_asked { u8::MAX } else { watched };
            let gone = u32::from(!bitmap::has(&members.healthy, holder));
            let known = if bitmap::has(&members.established, holder) { 0 } else { run.levels_established };
            if judged < levels && !bitmap::has(&members.judges, holder) {
                (add, last) = (open.to_all, open.ends.0);
            }
            for level in first..last {
                if told >> level & 1 == 0 || of_level(add, level) == 0 {
                    continue;
                }
                let place = of_level(counts, level);
                if is_asked {
                    committees.places[level] = place;
                }
                committees.gone[level] |= gone << place;
                committees.new[level] |= u32::from(known >> level & 1) << place;
            }
        }
        counts = counts.wrapping_add(add & EACH << (8 * first));
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

/// Stores what a member states of the levels whose committees it is in, and attests each on whose hash a quorum of its
/// committee now agrees.
#[inline(never)]
pub fn attest(run: &mut Run, members: &Members, witnesses: &mut Witnesses, stated: &Stated) -> Result<()> {
    require!(bitmap::has(&members.proven, stated.seat), CoordinatorError::NotElected);
    let committees = elect(run, members, &Wanted { asked: Some(stated.seat), watched: 0 });
    let (mut elected, mut hashes) = (false, stated.hashes.iter());
    for level in (0..MAX_LEVELS).filter(|level| stated.mask >> level & 1 == 1) {
        let hash = *hashes.next().ok_or(CoordinatorError::HashesInvalid)?;
        // neither of the two that stand for no contents at all
        let known = hash != UNSTATED && hash != super::levels::UNATTESTED;
        require!(known, CoordinatorError::HashesInvalid);
        let place = committees.places[level];
        let Some(entry) = witnesses.cooldown[level].get_mut(place as usize) else { continue };
        require!(*entry == UNSTATED, CoordinatorError::DuplicateWitness);
        *entry = hash;
        elected = true;
        settle(run, witnesses, level, committees.counts[level], &hash);
    }
    require!(elected, CoordinatorError::NotElected);
    Ok(())
}

/// Stands in the place of a member of the committee that has not spoken.
const UNSTATED: Hash = [0; 32];

/// All words at once: a call, or a branch for each word, costs more than the comparison, and there are 32 for each level.
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

/// Attests `level` if a quorum of its committee agrees with the newest statement about it.
fn settle(run: &mut Run, witnesses: &Witnesses, level: usize, elected: u8, newest: &Hash) {
    if run.levels_attested >> level & 1 == 1 {
        return;
    }
    let agreeing = witnesses.cooldown[level].iter().take(elected as usize).filter(|hash| is_equal(hash, newest));
    if agreeing.count() as u32 >= quorum::of(u32::from(elected)) {
        record(run, &witnesses.backlog, level, *newest);
    }
}

fn record(run: &mut Run, backlog: &Backlog, level: usize, hash: Hash) {
    run.level_hashes[level] = hash;
    run.levels_attested |= 1 << level;
    run.attested_step = run.step;
    run.attested_data_index = checkpoints::first_untrained(run, backlog);
}

/// The hash of `level` that every statement about it names, if half of its committee made one. It takes more than half, if
/// one of its members has gone without a word, and a member that is new to the level has spoken.
fn undisputed(witnesses: &Witnesses, level: usize, committees: &Committees) -> Option<Hash> {
    let elected = usize::from(committees.counts[level]);
    let (mut first, mut silent, mut quiet) = (None, 0u32, 0usize);
    for (place, hash) in witnesses.cooldown[level].iter().enumerate().take(elected) {
        if is_unstated(hash) {
            silent |= 1 << place;
            quiet += 2;
            if quiet > elected {
                return None;
            }
        } else if !is_equal(hash, first.get_or_insert(hash)) {
            return None;
        }
    }
    let lacking = committees.gone[level] & silent != 0 && committees.new[level] & !silent != 0;
    first.filter(|_| quiet + usize::from(lacking) <= elected).copied()
}

impl Machine<'_> {
    /// Levels that may have changed must be attested again, also those that nobody holds any more.
    #[inline(never)]
    pub fn start_cooldown(&mut self, moment: &Moment) -> Result<()> {
        weights::settle(self.members);
        provisional::confirm(self.run, self.members);
        let trained = super::levels::trained(self.run, self.members);
        for level in (0..MAX_LEVELS).filter(|level| trained >> level & 1 == 1) {
            self.run.level_hashes[level] = super::levels::UNATTESTED;
        }
        self.run.levels_attested &= !trained;
        self.witnesses.cooldown = [[UNSTATED; MAX_WITNESSES]; MAX_LEVELS];
        sequence::bump(&mut self.run.members_seq)?; // it tells who is in the committees
        self.enter(run_state::COOLDOWN, moment);
        Ok(())
    }

    /// If the time is up, holders that are away do not cost the run a level on which the others agree; a holder that
    /// disagrees still makes it take a quorum. Returns the levels of which nothing is known: what the epoch made of them was not
    /// attested, and of those whose word counts half or more have gone.
    #[inline(never)]
    pub fn conclude(&mut self, time_is_up: bool) -> u8 {
        let open = super::levels::all(self.run.levels) & !self.run.levels_attested;
        if open == 0 {
            return 0;
        }
        let committees = elect(self.run, self.members, &Wanted { asked: None, watched: open });
        let (mut unknown, worked) = (0, self.run.step != self.run.start_step);
        for level in (0..MAX_LEVELS).filter(|level| open >> level & 1 == 1) {
            let found = if time_is_up { undisputed(self.witnesses, level, &committees) } else { None };
            if let Some(hash) = found {
                record(self.run, &self.witnesses.backlog, level, hash);
            } else if 2 * committees.gone[level].count_ones() >= u32::from(committees.counts[level]) {
                unknown |= u8::from(worked && self.run.level_hashes[level] == super::levels::UNATTESTED) << level;
            }
        }
        unknown
    }

    /// Every held level is attested and a durable checkpoint of it exists: nothing is left to wait for.
    #[inline(never)]
    pub fn epoch_is_safe(&self) -> bool {
        if self.run.attested_step != self.run.step || self.model.checkpoint_step != self.run.step {
            return false;
        }
        let held = held(self.run, self.members);
        held != 0 && held & !self.run.levels_attested == 0
    }
}
