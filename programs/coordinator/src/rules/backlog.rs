//! Untrained sequences: collected when a round closes, taken first by the rounds that follow.
//!
//! Nothing is ever lost. Intervals are kept in ascending order and joined where they touch, so that only results with
//! gaps between them make more of them; and such results count only while the backlog has room for the gaps and for all
//! that is still under way. When that room is gone, rounds take nothing fresh either.

use crate::{
    constants::{BACKLOG, REDO},
    state::{Backlog, Interval, Round, Run},
};
use alloc::vec::Vec;

/// Places that stay free for the intervals of the two rounds that are under way.
const ROOM: usize = 2 * (REDO + 1);

impl Backlog {
    fn waiting(&self) -> usize {
        (self.count as usize).min(BACKLOG)
    }

    /// Whether `more` intervals fit, with room for what is under way.
    pub fn has_room(&self, more: usize) -> bool {
        self.waiting() + more + ROOM <= BACKLOG
    }

    /// What waits the longest, and comes first in the data.
    pub fn first(&self) -> Option<&Interval> {
        self.intervals[..self.waiting()].first()
    }

    /// Forgets what waits: the run continues at another point.
    pub fn clear(&mut self, run: &mut Run) {
        self.count = 0;
        run.backlog = 0;
    }

    /// Puts back intervals, given in ascending order.
    #[inline(never)]
    pub fn put(&mut self, run: &mut Run, intervals: &[Interval]) {
        let (mut place, mut count, mut sequences) = (0, self.waiting(), 0u64);
        for interval in intervals {
            sequences = sequences.wrapping_add(u64::from(interval.len));
            while place < count && self.intervals[place].start < interval.start {
                place += 1;
            }
            let follows = place > 0 && end(&self.intervals[place - 1]) == interval.start;
            let precedes = place < count && self.intervals[place].start == end(interval);
            if follows {
                place -= 1;
                self.intervals[place].len = self.intervals[place].len.saturating_add(interval.len);
                if precedes {
                    let joined = self.intervals[place + 1].len;
                    self.intervals[place].len = self.intervals[place].len.saturating_add(joined);
                    self.intervals.copy_within(place + 2..count, place + 1);
                    count -= 1;
                }
            } else if precedes {
                self.intervals[place].start = interval.start;
                self.intervals[place].len = self.intervals[place].len.saturating_add(interval.len);
            } else if count < BACKLOG {
                if place < count {
                    self.intervals.copy_within(place..count, place + 1);
                }
                self.intervals[place] = *interval;
                (place, count) = (place + 1, count + 1); // the next one comes after it
            } else {
                // never, as `has_room` is asked; if it were, it would be counted
                run.lost_sequences = run.lost_sequences.saturating_add(u64::from(interval.len));
            }
        }
        self.count = count as u64;
        run.backlog = run.backlog.saturating_add(sequences);
    }

    /// Takes up to `batch` sequences of the first intervals: where they start, and how many of each.
    #[inline(never)]
    pub fn take(&mut self, run: &mut Run, batch: u16) -> ([u64; REDO], [u16; REDO]) {
        let (mut starts, mut lens) = ([0; REDO], [0; REDO]);
        let (mut left, mut emptied) = (batch, 0);
        let count = self.waiting();
        for (place, one) in self.intervals[..count].iter_mut().take(REDO).enumerate() {
            let taken = one.len.min(u32::from(left));
            (starts[place], lens[place]) = (one.start, taken as u16);
            one.start = one.start.wrapping_add(u64::from(taken));
            one.len -= taken;
            left -= taken as u16;
            emptied += usize::from(one.len == 0);
            if left == 0 {
                break;
            }
        }
        self.intervals.copy_within(emptied..count, 0);
        self.count = count.saturating_sub(emptied) as u64;
        run.backlog = run.backlog.saturating_sub(u64::from(batch - left));
        (starts, lens)
    }
}

fn end(interval: &Interval) -> u64 {
    interval.start.wrapping_add(u64::from(interval.len))
}

/// Untrained positions of one round, given in ascending order, neighbours joined.
pub struct Gaps(Vec<(u16, u16)>);

impl Gaps {
    /// With room for what may be kept: an allocation is never given back, so it should not grow.
    pub fn new() -> Self {
        Self(Vec::with_capacity(BACKLOG))
    }

    pub fn add(&mut self, start: u16, len: u16) {
        let stop = start.wrapping_add(len);
        match self.0.last_mut() {
            Some(last) if last.1 == start => last.1 = stop,
            _ => self.0.push((start, stop)),
        }
    }

    /// The sequences behind them, in ascending order.
    #[inline(never)]
    pub fn intervals(&self, round: &Round) -> Vec<Interval> {
        let pieces = whole(round);
        let mut found = Vec::with_capacity(self.0.len() + pieces.len());
        let (mut first, mut index) = (0u16, 0);
        for (start, stop) in &self.0 {
            let mut from = *start;
            while from < *stop {
                let Some(piece) = pieces.get(index) else { return found };
                let end = first.wrapping_add(piece.len as u16);
                if from >= end {
                    (first, index) = (end, index + 1);
                    continue;
                }
                let upto = end.min(*stop);
                let place = u64::from(from.wrapping_sub(first));
                found
                    .push(Interval { start: piece.start.wrapping_add(place), len: u32::from(upto.wrapping_sub(from)) });
                from = upto;
            }
        }
        found
    }
}

impl Default for Gaps {
    fn default() -> Self {
        Self::new()
    }
}

/// The intervals of a round's positions: those that are done again, then the fresh one.
fn pieces(round: &Round) -> impl Iterator<Item = Interval> + '_ {
    let again = round.redo_index.iter().zip(round.redo).filter(|(_, len)| *len > 0);
    let again = again.map(|(start, len)| Interval { start: *start, len: u32::from(len) });
    let fresh = round.fresh();
    again.chain((fresh > 0).then_some(Interval { start: round.data_index, len: u32::from(fresh) }))
}

/// All of a round's sequences, in ascending order.
pub fn whole(round: &Round) -> Vec<Interval> {
    pieces(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use bytemuck::Zeroable;

    struct Story {
        run: Run,
        backlog: Backlog,
        trained: BTreeSet<u64>,
    }

    impl Story {
        fn open(&mut self, batch: u16) -> Round {
            let mut round = Round::zeroed();
            (round.redo_index, round.redo) = self.backlog.take(&mut self.run, batch);
            let again: u16 = round.redo.iter().sum();
            round.batch = if self.backlog.has_room(0) { batch } else { again };
            round.data_index = self.run.data_index;
            self.run.data_index += u64::from(round.batch - again);
            assert!(round.batch > 0);
            round
        }

        /// Settles a round of which these positions were trained, in shares of some length.
        fn settle(&mut self, round: &Round, trained: &[bool]) {
            let mut gaps = Gaps::new();
            for position in (0..round.batch).filter(|position| !trained[*position as usize]) {
                gaps.add(position, 1);
            }
            let mut untrained = gaps.intervals(round);
            if !untrained.is_empty() && !self.backlog.has_room(untrained.len()) {
                untrained = whole(round);
            }
            let back: BTreeSet<u64> =
                untrained.iter().flat_map(|one| one.start..one.start + u64::from(one.len)).collect();
            for sequence in whole(round).iter().flat_map(|one| one.start..one.start + u64::from(one.len)) {
                assert!(back.contains(&sequence) || self.trained.insert(sequence), "{sequence} twice");
            }
            self.backlog.put(&mut self.run, &untrained);
        }

        fn check(&self, under_way: &[Round]) {
            let waiting = &self.backlog.intervals[..self.backlog.count as usize];
            assert!(waiting.windows(2).all(|pair| end(&pair[0]) < pair[1].start), "sorted, joined");
            assert!(waiting.iter().all(|one| one.len > 0));
            let count: u64 = waiting.iter().map(|one| u64::from(one.len)).sum();
            let flying: u64 = under_way.iter().map(|round| u64::from(round.batch)).sum();
            assert_eq!(self.run.backlog, count);
            assert_eq!(count + flying + self.trained.len() as u64, self.run.data_index);
            assert_eq!(self.run.lost_sequences, 0);
        }
    }

    #[test]
    fn nothing_is_lost_or_trained_twice_whatever_is_left_out() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for case in 0..60 {
            let mut story = Story { run: Run::zeroed(), backlog: Backlog::zeroed(), trained: BTreeSet::new() };
            let overlap = case % 2;
            let mut flying = alloc::vec![];
            for _ in 0..300 {
                let batch = 1 + random(300) as u16;
                flying.push(story.open(batch));
                story.check(&flying);
                if flying.len() <= overlap {
                    continue;
                }
                let round = flying.remove(0);
                let (kind, share) = (random(4), 1 + random(9) as usize);
                let mut trained = Vec::new();
                while trained.len() < round.batch as usize {
                    let delivered = [true, false, random(2) == 0, random(3) > 0][kind as usize];
                    trained.extend(core::iter::repeat_n(delivered, share));
                }
                story.settle(&round, &trained);
                if overlap == 1 && random(9) == 0 {
                    let last = flying.remove(0); // an epoch that nobody attests any more
                    let untrained = whole(&last);
                    story.backlog.put(&mut story.run, &untrained);
                }
                story.check(&flying);
            }
        }
    }
}
