//! Untrained sequences: collected when a round closes, taken first by the next one.

use crate::{
    constants::BACKLOG,
    state::{Interval, Round, Run},
};
use bytemuck::Zeroable;

/// Gathers untrained positions of one round in ascending order, merging neighbours.
pub struct Gap {
    start: u16,
    end: u16,
}

impl Gap {
    pub fn new() -> Self {
        Self { start: 0, end: 0 }
    }

    pub fn add(&mut self, run: &mut Run, round: &Round, (start, len): (u16, u16)) {
        if start != self.end {
            self.flush(run, round);
            self.start = start;
        }
        self.end = start.saturating_add(len);
    }

    /// Puts what was gathered into the backlog, split where the round's fresh sequences begin.
    #[inline(never)]
    pub fn flush(&mut self, run: &mut Run, round: &Round) {
        let (start, end, redo) = (self.start, self.end, round.redo);
        if start < redo.min(end) {
            push(run, round.redo_index + u64::from(start), u32::from(redo.min(end) - start));
        }
        if start.max(redo) < end {
            let first = start.max(redo);
            push(run, round.data_index + u64::from(first - redo), u32::from(end - first));
        }
        self.start = self.end;
    }
}

impl Default for Gap {
    fn default() -> Self {
        Self::new()
    }
}

/// Appends sequences, joined to the last interval where they follow it; what does not fit is counted as lost.
fn push(run: &mut Run, start: u64, len: u32) {
    let count = (run.backlog_len as usize).min(BACKLOG);
    if let Some(last) = run.backlog[..count].last_mut() {
        if last.start + u64::from(last.len) == start {
            if let Some(joined) = last.len.checked_add(len) {
                last.len = joined;
                return;
            }
        }
    }
    if count == BACKLOG {
        run.lost_sequences = run.lost_sequences.saturating_add(u64::from(len));
        return;
    }
    run.backlog[count] = Interval { start, len, pad: 0 };
    run.backlog_len = (count + 1) as u8;
}

/// Takes up to `batch` sequences from the oldest interval; returns the first one and their number.
pub fn take(run: &mut Run, batch: u16) -> (u64, u16) {
    let count = (run.backlog_len as usize).min(BACKLOG);
    if count == 0 {
        return (0, 0);
    }
    let first = &mut run.backlog[0];
    let taken = first.len.min(u32::from(batch));
    let start = first.start;
    first.start += u64::from(taken);
    first.len -= taken;
    if first.len == 0 {
        run.backlog.copy_within(1..count, 0);
        run.backlog[count - 1] = Interval::zeroed();
        run.backlog_len = (count - 1) as u8;
    }
    (start, taken as u16)
}
