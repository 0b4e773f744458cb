//! Rounds: starting one, closing one, and what follows.

use super::{assignment::Plan, backlog, backlog::Gap, batch, bitmap, committee, members, moment::elapsed};
use super::{quorum, seeds, Machine, Moment};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use bytemuck::Zeroable;

impl Machine<'_> {
    /// Starts round `height` with the members of `roster`; the drain round, which a run with overlap needs, has no data.
    #[inline(never)]
    pub fn start_round(&mut self, roster: &Bitmap, moment: &Moment, height: u32) {
        let run = &mut *self.run;
        let seed = seeds::next(run.current().seed, moment, run.step);
        let batch = if run.draining == 1 { 0 } else { batch::size(&run.config, run.data_index) };
        let (redo_index, redo) = backlog::take(run, batch);
        run.head = if height == 0 { 0 } else { (run.head + 1) % STORED_ROUNDS as u8 };
        let clients = bitmap::count(roster) as u16;
        run.rounds[run.head as usize] = Round {
            seed,
            data_index: run.data_index,
            redo_index,
            height,
            step: run.step,
            batch,
            redo,
            clients,
            elected: committee::elected(run.config.witness_nodes, clients),
            attestations: 0,
            roster: *roster,
            attested: Bitmap::zeroed(),
        };
        run.data_index = run.data_index.saturating_add(u64::from(batch - redo));
        self.witnesses.rounds[run.head as usize].verdict_count = 0;
        self.enter(run_state::ROUND_TRAIN, moment);
    }

    /// Closes the current round: results, untrained data, step, and the round or phase that follows.
    #[inline(never)]
    pub fn close_round(&mut self, moment: &Moment) -> Result<()> {
        let head = self.run.ring(0);
        let round = self.run.rounds[head];
        self.run.rounds[head].attested = match self.run.judged(0) {
            Some(judged) => self.settle(&round, judged),
            None => Bitmap::zeroed(),
        };
        if round.batch > 0 {
            self.run.step = self.run.step.checked_add(1).ok_or(CoordinatorError::Overflow)?;
        }
        if self.run.draining == 1 {
            self.start_cooldown(moment);
            return Ok(());
        }
        let healthy = members::healthy(self.members);
        let reason = self.exit_reason(&round, &healthy, moment);
        self.run.exit_reason = reason;
        let unsettled = self.run.config.overlap == 1; // its own results wait for the next round's witnesses
        if reason == exit_reason::NO_ATTESTATION && unsettled {
            let mut gap = Gap::new();
            gap.add(self.run, &round, (0, round.batch));
            gap.flush(self.run, &round);
        }
        if reason == exit_reason::NO_ATTESTATION || (reason != exit_reason::NONE && !unsettled) {
            self.start_cooldown(moment);
            return Ok(());
        }
        self.run.draining = u8::from(reason != exit_reason::NONE);
        let height = round.height.checked_add(1).ok_or(CoordinatorError::Overflow)?;
        self.start_round(&healthy, moment, height);
        Ok(())
    }

    /// Members of the `judged` round whose results a quorum of the witnesses of `round` holds (or who owed none); the
    /// rest of its data is untrained.
    #[inline(never)]
    fn settle(&mut self, round: &Round, judged: usize) -> Bitmap {
        let judged = self.run.rounds[judged];
        let count = (round.attestations as usize).min(MAX_WITNESSES);
        let attestations = &self.witnesses.rounds[self.run.ring(0)].attestations[..count];
        let quorum = quorum::of(u32::from(round.elected));
        let mut attested = bitmap::both(&quorum::tally(attestations, quorum), &judged.roster);
        if attested == judged.roster {
            return attested;
        }
        let plan = Plan::new(&judged, self.members, self.run.config.verification_percent);
        let mut gap = Gap::new();
        for share in plan.shares() {
            if share.len == 0 {
                bitmap::set(&mut attested, share.slot);
            } else if !bitmap::has(&attested, share.slot) {
                gap.add(self.run, &judged, (share.start, share.len));
            }
        }
        gap.flush(self.run, &judged);
        attested
    }

    /// Why the epoch ends after this round, if it does.
    fn exit_reason(&self, round: &Round, healthy: &Bitmap, moment: &Moment) -> u8 {
        let (run, config) = (&*self.run, &self.run.config);
        let rounds = round.height.saturating_add(1);
        if round.attestations == 0 {
            exit_reason::NO_ATTESTATION
        } else if u32::from(round.attestations) < quorum::of(u32::from(round.elected)) {
            exit_reason::QUORUM_MISSING
        } else if bitmap::count(healthy) < u32::from(config.min_clients) {
            exit_reason::TOO_FEW_CLIENTS
        } else if run.step > config.total_steps {
            exit_reason::TOTAL_STEPS
        } else if config.rounds_per_epoch > 0 && rounds >= config.rounds_per_epoch {
            exit_reason::ROUNDS_PER_EPOCH
        } else if config.epoch_time > 0 && elapsed(moment.now, run.epoch_started_at, config.epoch_time) {
            exit_reason::EPOCH_TIME
        } else if run.pending_pause == 1 {
            exit_reason::PAUSE
        } else {
            exit_reason::NONE
        }
    }
}
