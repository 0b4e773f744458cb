//! The backlog of untrained sequences, collected when a round closes and trained first by the next rounds.
//!
//! No sequence is ever lost. Intervals are sorted and joined where they touch, so only gaps between results add
//! intervals. Partial results count only while the backlog has room for their gaps and for the rounds in progress.
//! Without that room, rounds take no fresh sequences either.

use crate::{
    constants::{BACKLOG, REDO},
    state::{Backlog, Interval, Round, Run},
};
use alloc::vec::Vec;

/// Number of intervals that stay free for the two rounds in progress.
const ROOM: usize = 2 * (REDO + 1);

impl Backlog {
    fn waiting(&self) -> usize {
        (self.count as usize).min(BACKLOG)
    }

    /// Return whether `more` intervals fit, in addition to the rounds in progress.
    pub fn has_room(&self, more: usize) -> bool {
        self.waiting() + more + ROOM <= BACKLOG
    }

    /// Return the interval with the lowest sequences, which waits longest.
    pub fn first(&self) -> Option<&Interval> {
        self.intervals[..self.waiting()].first()
    }

    /// Forget all intervals, because the run continues at another point.
    pub fn clear(&mut self, run: &mut Run) {
        self.count = 0;
        run.backlog = 0;
    }

    /// Add intervals, given in ascending order.
    #[inline(never)]
    pub fn put(&mut self, run: &mut Run, intervals: &[Interval]) {
        let mut index = 0;
        let mut count = self.waiting();
        let mut sequences = 0u64;
        for interval in intervals {
            sequences = sequences.wrapping_add(u64::from(interval.len));
            while index < count && self.intervals[index].start < interval.start {
                index += 1;
            }
            let follows = index > 0 && end(&self.intervals[index - 1]) == interval.start;
            let precedes = index < count && self.intervals[index].start == end(interval);
            if follows {
                index -= 1;
                self.intervals[index].len = self.intervals[index].len.saturating_add(interval.len);
                if precedes {
                    let joined = self.intervals[index + 1].len;
                    self.intervals[index].len = self.intervals[index].len.saturating_add(joined);
                    self.intervals.copy_within(index + 2..count, index + 1);
                    count -= 1;
                }
            } else if precedes {
                self.intervals[index].start = interval.start;
                self.intervals[index].len = self.intervals[index].len.saturating_add(interval.len);
            } else if count < BACKLOG {
                if index < count {
                    self.intervals.copy_within(index..count, index + 1);
                }
                self.intervals[index] = *interval;
                index += 1; // the next interval comes after this one
                count += 1;
            } else {
                // Unreachable, because callers ask `has_room`. The invariant check would refuse a lost sequence.
                run.lost_sequences = run.lost_sequences.saturating_add(u64::from(interval.len));
            }
        }
        self.count = count as u64;
        run.backlog = run.backlog.saturating_add(sequences);
    }

    /// Take up to `batch` sequences from the first intervals. Return the start and the length of each piece.
    #[inline(never)]
    pub fn take(&mut self, run: &mut Run, batch: u16) -> ([u64; REDO], [u16; REDO]) {
        let mut starts = [0; REDO];
        let mut lens = [0; REDO];
        let mut left = batch;
        let mut emptied = 0;
        let count = self.waiting();
        for (index, interval) in self.intervals[..count].iter_mut().take(REDO).enumerate() {
            let taken = interval.len.min(u32::from(left));
            starts[index] = interval.start;
            lens[index] = taken as u16;
            interval.start = interval.start.wrapping_add(u64::from(taken));
            interval.len -= taken;
            left -= taken as u16;
            emptied += usize::from(interval.len == 0);
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

/// Untrained positions of one round as half-open ranges, ascending, neighbours joined.
pub struct Gaps(Vec<(u16, u16)>);

impl Gaps {
    /// Return an empty list with its full capacity: the allocator never frees, so the list should not grow.
    pub fn new() -> Self {
        Self(Vec::with_capacity(BACKLOG))
    }

    /// Add the positions of one share. Shares must come in ascending order.
    pub fn add(&mut self, start: u16, len: u16) {
        let stop = start.wrapping_add(len);
        match self.0.last_mut() {
            Some(last) if last.1 == start => last.1 = stop,
            _ => self.0.push((start, stop)),
        }
    }

    /// Return the sequences at these positions, in ascending order.
    #[inline(never)]
    pub fn intervals(&self, round: &Round) -> Vec<Interval> {
        let pieces = whole(round);
        let mut intervals = Vec::with_capacity(self.0.len() + pieces.len());
        let mut piece_start = 0u16; // the first position of the piece at `index`
        let mut index = 0;
        for (start, stop) in &self.0 {
            let mut position = *start;
            while position < *stop {
                let Some(piece) = pieces.get(index) else { return intervals };
                let piece_stop = piece_start.wrapping_add(piece.len as u16);
                if position >= piece_stop {
                    piece_start = piece_stop;
                    index += 1;
                    continue;
                }
                let end = piece_stop.min(*stop);
                let offset = u64::from(position.wrapping_sub(piece_start));
                intervals.push(Interval {
                    start: piece.start.wrapping_add(offset),
                    len: u32::from(end.wrapping_sub(position)),
                });
                position = end;
            }
        }
        intervals
    }
}

impl Default for Gaps {
    fn default() -> Self {
        Self::new()
    }
}

/// Return the intervals of a round in the order of its positions: first those that are trained again, then the fresh
/// one.
fn pieces(round: &Round) -> impl Iterator<Item = Interval> + '_ {
    let redo = round.redo_index.iter().zip(round.redo).filter(|(_, len)| *len > 0);
    let redo = redo.map(|(start, len)| Interval { start: *start, len: u32::from(len) });
    let fresh = round.fresh();
    redo.chain((fresh > 0).then_some(Interval { start: round.data_index, len: u32::from(fresh) }))
}

/// Return all sequences of a round, in ascending order.
pub fn whole(round: &Round) -> Vec<Interval> {
    pieces(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use bytemuck::Zeroable;

    /// A run of which only the data is simulated.
    struct Simulation {
        run: Run,
        backlog: Backlog,
        trained: BTreeSet<u64>,
    }

    impl Simulation {
        fn open(&mut self, batch: u16) -> Round {
            let mut round = Round::zeroed();
            (round.redo_index, round.redo) = self.backlog.take(&mut self.run, batch);
            let redo_total: u16 = round.redo.iter().sum();
            round.batch = if self.backlog.has_room(0) { batch } else { redo_total };
            round.data_index = self.run.data_index;
            self.run.data_index += u64::from(round.batch - redo_total);
            assert!(round.batch > 0);
            round
        }

        /// Settle a round, given for each of its positions whether it was trained.
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

        fn check(&self, in_progress: &[Round]) {
            let waiting = &self.backlog.intervals[..self.backlog.count as usize];
            assert!(waiting.windows(2).all(|pair| end(&pair[0]) < pair[1].start), "sorted, joined");
            assert!(waiting.iter().all(|one| one.len > 0));
            let count: u64 = waiting.iter().map(|one| u64::from(one.len)).sum();
            let batches: u64 = in_progress.iter().map(|round| u64::from(round.batch)).sum();
            assert_eq!(self.run.backlog, count);
            assert_eq!(count + batches + self.trained.len() as u64, self.run.data_index);
            assert_eq!(self.run.lost_sequences, 0);
        }
    }

    #[test]
    fn backlog_never_loses_or_repeats_a_sequence() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for case in 0..60 {
            let mut simulation =
                Simulation { run: Run::zeroed(), backlog: Backlog::zeroed(), trained: BTreeSet::new() };
            let overlap = case % 2;
            let mut in_progress = alloc::vec![];
            for _ in 0..300 {
                let batch = 1 + random(300) as u16;
                in_progress.push(simulation.open(batch));
                simulation.check(&in_progress);
                if in_progress.len() <= overlap {
                    continue;
                }
                let round = in_progress.remove(0);
                let kind = random(4);
                let share = 1 + random(9) as usize;
                let mut trained = Vec::new();
                while trained.len() < round.batch as usize {
                    let delivered = [true, false, random(2) == 0, random(3) > 0][kind as usize];
                    trained.extend(core::iter::repeat_n(delivered, share));
                }
                simulation.settle(&round, &trained);
                if overlap == 1 && random(9) == 0 {
                    let last = in_progress.remove(0); // the epoch ends without an attestation of this round
                    let untrained = whole(&last);
                    simulation.backlog.put(&mut simulation.run, &untrained);
                }
                simulation.check(&in_progress);
            }
        }
    }
}
