//! The end of an epoch: members state what their levels contain until a quorum agrees on each.

use super::{bitmap, checkpoints, committee, quorum, Machine, Moment};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;

/// What a member states: one hash per set bit of the mask, ascending.
pub struct Stated<'a> {
    pub slot: u8,
    pub mask: u8,
    pub hashes: &'a [Hash],
}

/// The members elected to attest each level.
struct Election {
    /// Members elected per level.
    counts: [u8; MAX_LEVELS],
    /// Levels that the asked member is elected for.
    mask: u8,
}

/// Levels of which a healthy member of the last round holds a copy. A tier holds its own level and all higher ones.
fn held(run: &Run, members: &Members) -> u8 {
    let (by_rank, clients) = bitmap::by_rank(&run.current().roster);
    let roster = by_rank.iter().take(clients).map(|slot| &members.slots[*slot as usize]);
    let healthy = roster.filter(|member| member.state == member_state::HEALTHY);
    let smallest = healthy.map(|member| member.tier).min().unwrap_or(MAX_LEVELS as u8);
    super::levels::all(run.levels) & !super::levels::all(smallest)
}

/// Elects for each level, in the cooldown order, the first `32 / levels` of those who held it when cooldown began.
#[inline(never)]
fn elect(run: &Run, members: &Members, slot: u8) -> Election {
    let round = run.current();
    let (by_rank, _) = bitmap::by_rank(&round.roster);
    let levels = run.levels.clamp(1, MAX_LEVELS as u8);
    let places = (MAX_WITNESSES as u8 / levels).max(1);
    let mut election = Election { counts: [0; MAX_LEVELS], mask: 0 };
    for rank in committee::order(round, committee::COOLDOWN).ranks() {
        let holder = by_rank[*rank as usize];
        let member = &members.slots[holder as usize];
        // whoever leaves in cooldown keeps its place: a vote that counts must not make room for another
        let stood = member.state == member_state::HEALTHY || member.exited_height > round.height;
        if !stood {
            continue;
        }
        for level in member.tier..levels {
            let count = &mut election.counts[level as usize];
            if *count < places {
                *count += 1;
                election.mask |= u8::from(holder == slot) << level;
            }
        }
        if election.counts[0] == places {
            // every level above has at least the holders of level 0
            break;
        }
    }
    election
}

/// Stores a member's statement and attests each level on whose hash a quorum of its elected members now agrees.
#[inline(never)]
pub fn attest(run: &mut Run, members: &Members, witnesses: &mut Witnesses, stated: &Stated) -> Result<()> {
    let election = elect(run, members, stated.slot);
    let mask = stated.mask & election.mask;
    require!(mask != 0, CoordinatorError::NotElected);
    let count = (witnesses.cooldown_count as usize).min(MAX_WITNESSES);
    let earlier = witnesses.cooldown[..count].iter().any(|entry| entry.slot == stated.slot);
    require!(!earlier, CoordinatorError::DuplicateWitness);
    require!(count < MAX_WITNESSES, CoordinatorError::CooldownFull);
    let entry = &mut witnesses.cooldown[count];
    entry.slot = stated.slot;
    entry.mask = mask;
    let levels = (0..MAX_LEVELS).filter(|level| stated.mask >> level & 1 == 1);
    for (level, hash) in levels.zip(stated.hashes) {
        // neither of the two that stand for no contents at all
        let known = *hash != [0; 32] && *hash != super::levels::UNATTESTED;
        require!(known, CoordinatorError::HashesInvalid);
        entry.hashes[level] = *hash;
    }
    witnesses.cooldown_count = (count + 1) as u8;
    for level in (0..MAX_LEVELS).filter(|level| mask >> level & 1 == 1) {
        settle(run, witnesses, level, election.counts[level]);
    }
    Ok(())
}

/// The statements made so far.
fn stored(witnesses: &Witnesses) -> &[LevelAttestation] {
    &witnesses.cooldown[..(witnesses.cooldown_count as usize).min(MAX_WITNESSES)]
}

/// Attests `level` if a quorum agrees with the newest statement about it.
fn settle(run: &mut Run, witnesses: &Witnesses, level: usize, elected: u8) {
    let entries = stored(witnesses);
    let Some(newest) = entries.last().map(|entry| entry.hashes[level]) else { return };
    if run.levels_attested >> level & 1 == 1 {
        return;
    }
    let agreeing = entries.iter().filter(|entry| entry.mask >> level & 1 == 1 && entry.hashes[level] == newest);
    if agreeing.count() as u32 >= quorum::of(u32::from(elected)) {
        record(run, &witnesses.backlog, level, newest);
    }
}

fn record(run: &mut Run, backlog: &Backlog, level: usize, hash: Hash) {
    run.level_hashes[level] = hash;
    run.levels_attested |= 1 << level;
    run.attested_step = run.step;
    run.attested_data_index = checkpoints::first_untrained(run, backlog);
}

/// The hash of `level` that every statement about it names, if at least half of those elected made one.
fn undisputed(entries: &[LevelAttestation], level: usize, elected: u8) -> Option<Hash> {
    let stated = || entries.iter().filter(|entry| entry.mask >> level & 1 == 1).map(|entry| entry.hashes[level]);
    let first = stated().next()?;
    (stated().all(|hash| hash == first) && 2 * stated().count() >= usize::from(elected)).then_some(first)
}

impl Machine<'_> {
    /// Levels that may have changed must be attested anew, also those that nobody holds any more.
    #[inline(never)]
    pub fn start_cooldown(&mut self, moment: &Moment) {
        let trained = super::levels::trained(self.run, self.members);
        for level in (0..MAX_LEVELS).filter(|level| trained >> level & 1 == 1) {
            self.run.level_hashes[level] = super::levels::UNATTESTED;
        }
        self.run.levels_attested &= !trained;
        self.witnesses.cooldown_count = 0;
        self.enter(run_state::COOLDOWN, moment);
    }

    /// The time is up: holders that are away do not cost the run a level on which the others agree. Whoever disagrees
    /// still makes it take a quorum.
    #[inline(never)]
    pub fn settle_undisputed(&mut self) {
        let entries = stored(self.witnesses);
        let open = super::levels::all(self.run.levels) & !self.run.levels_attested;
        if entries.is_empty() || open == 0 {
            return;
        }
        let counts = elect(self.run, self.members, 0).counts;
        for level in (0..MAX_LEVELS).filter(|level| open >> level & 1 == 1) {
            if let Some(hash) = undisputed(entries, level, counts[level]) {
                record(self.run, &self.witnesses.backlog, level, hash);
            }
        }
    }

    /// Every held level is attested and a durable checkpoint of it exists: nothing is left to wait for.
    #[inline(never)]
    pub fn epoch_is_safe(&self) -> bool {
        let held = held(self.run, self.members);
        let attested = held != 0 && held & !self.run.levels_attested == 0;
        attested && self.run.attested_step == self.run.step && self.model.checkpoint_step == self.run.step
    }
}
