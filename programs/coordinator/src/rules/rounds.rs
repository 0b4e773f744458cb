//! Start and close rounds, and decide whether another round or the cooldown follows.

use super::{agreement, agreement::Votes, assignment, assignment::Plan, backlog, backlog::Gaps, batch, bitmap};
use super::{committee, moment::elapsed, quorum, seeds, validate_config, weights, weights::Counted, Machine, Moment};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use bytemuck::Zeroable;

/// The outcome of the round that a closed round judges.
struct Settled {
    /// Members whose result a quorum of the witnesses recorded alike, and members that owed none.
    attested: Bitmap,
    /// The attested members that owed a result. If there are any, the round made a step.
    delivered: Bitmap,
    /// The members that the round counts for in `weights`.
    counted: Counted,
}

impl Machine<'_> {
    /// Start round `height` with the drawn seed and the roster that was fixed before the draw. `unsettled` is the
    /// number of steps that rounds not yet judged may still make. A drain round has no data.
    #[inline(never)]
    pub fn start_round(&mut self, moment: &Moment, height: u32, unsettled: u32) {
        let run = &mut *self.run;
        let seed = run.next_seed;
        let roster = run.next_roster;
        let global_batch = if run.draining > 0 { 0 } else { batch::size(&run.config, run.data_index) };
        let backlog = &mut self.witnesses.backlog;
        let (redo_index, redo) = backlog.take(run, global_batch);
        let redo_total = redo.iter().fold(0, |sum: u16, len| sum.saturating_add(*len));
        let previous = run.head as usize;
        run.head = if height == 0 { 0 } else { (run.head + 1) % STORED_ROUNDS as u8 };
        let mut seated = bitmap::both(&roster, &self.members.healthy);
        let mut established = established_only::NOTHING;
        let mut max_batch = if backlog.has_room(0) { global_batch } else { 0 };
        // The first round decides for the epoch. Otherwise newcomers would get the vote when one of three established
        // members leaves.
        let only_established = if height == 0 {
            committee::only_established_witness(run, self.members)
        } else {
            run.rounds[previous].established != established_only::NOTHING
        };
        let wanted_witnesses = committee::wanted_witnesses(run.config.witness_nodes, only_established);
        if only_established {
            seated = bitmap::both(&seated, &self.members.judges);
            established = established_only::WITNESS;
            let has_newcomers = !bitmap::is_subset(&roster, &self.members.judges);
            if has_newcomers && !backlog.has_room(BACKLOG / 2) {
                established = established_only::TRAIN;
                max_batch = assignment::established_share(self.members, &roster, max_batch);
            }
        }
        let batch = max_batch.max(redo_total);
        run.rounds[run.head as usize] = Round {
            seed,
            salt: seeds::salt(moment),
            data_index: run.data_index,
            redo_index,
            height,
            step: run.step.saturating_add(unsettled),
            batch,
            redo,
            clients: bitmap::count(&roster) as u16,
            elected: committee::elected(wanted_witnesses, bitmap::count(&seated) as u16),
            attestations: 0,
            roster,
            attested: Bitmap::zeroed(),
            made_step: 0,
            established,
        };
        run.data_index = run.data_index.saturating_add(u64::from(batch - redo_total));
        run.next_roster = self.members.healthy;
        // The seed fixed when the last drain round begins draws audits of the last round with data.
        if run.draining == 0 || run.is_audited() {
            seeds::fix(run, moment);
        }
        if height == 0 {
            self.witnesses.cases.count = 0;
        }
        self.enter(run_state::ROUND_TRAIN, moment);
    }

    /// Close the current round: settle the round that it judges, then start the next round or the cooldown.
    #[inline(never)]
    pub fn close_round(&mut self, moment: &Moment) -> Result<()> {
        let head = self.run.ring(0);
        let round = self.run.rounds[head];
        if let Some(judged) = self.run.judged(0) {
            let Settled { attested, delivered, counted } = self.settle(&round, judged);
            self.run.rounds[head].attested = attested;
            if !bitmap::is_empty(&delivered) {
                self.run.step = self.run.step.checked_add(1).ok_or(CoordinatorError::Overflow)?;
                self.run.rounds[head].made_step = 1;
                weights::count(self.members, &counted);
            }
        } else {
            self.run.rounds[head].attested = Bitmap::zeroed();
        }
        let overlap = self.run.config.overlap == 1; // the next round's witnesses judge this round's results
        let unsettled = u32::from(overlap && round.batch > 0);
        if self.run.draining > 0 {
            self.run.draining -= 1;
        } else {
            let reason = self.why_epoch_ends(&round, unsettled, moment);
            self.run.exit_reason = reason;
            if reason == exit_reason::NO_ATTESTATION {
                if overlap {
                    self.witnesses.backlog.put(self.run, &backlog::whole(&round));
                }
            } else if reason != exit_reason::NONE {
                self.run.draining = u8::from(overlap) + u8::from(self.run.is_audited());
            }
        }
        if self.run.exit_reason != exit_reason::NONE && self.run.draining == 0 {
            self.start_cooldown(moment);
            return Ok(());
        }
        let height = round.height.checked_add(1).ok_or(CoordinatorError::Overflow)?;
        self.start_round(moment, height, unsettled);
        Ok(())
    }

    /// Return the outcome of the round at ring index `judged`, and put its untrained data back into the backlog. If the
    /// backlog has no room for the gaps, the round's whole data goes back and nobody has delivered.
    #[inline(never)]
    fn settle(&mut self, round: &Round, judged: usize) -> Settled {
        let judged = self.run.rounds[judged];
        let count = (round.attestations as usize).min(MAX_WITNESSES);
        let attestations = &self.witnesses.rounds[self.run.ring(0)].attestations[..count];
        let quorum = quorum::of_round(round, u32::from(round.elected));
        let columns = agreement::columns(&judged.roster);
        let agreed = agreement::agreed(&Votes { attestations, leading: &self.witnesses.leading, columns, quorum });
        let mut attested = bitmap::both(&agreed.by_quorum, &judged.roster);
        if attested == judged.roster {
            let delivered = if judged.batch > 0 { attested } else { Bitmap::zeroed() };
            return Settled { attested, delivered, counted: Counted { attested, delivered } };
        }
        let mut idle = Bitmap::zeroed(); // members without a share
        let mut gaps = Gaps::new();
        let plan = Plan::new(&judged, &self.run.began, self.members);
        for share in plan.shares() {
            if share.len == 0 {
                bitmap::set(&mut idle, share.seat);
            } else if !bitmap::has(&attested, share.seat) {
                gaps.add(share.start, share.len);
            }
        }
        let mut untrained = gaps.intervals(&judged);
        if !untrained.is_empty() && !self.witnesses.backlog.has_room(untrained.len()) {
            attested = Bitmap::zeroed();
            untrained = backlog::whole(&judged);
        }
        self.witnesses.backlog.put(self.run, &untrained);
        let idle = bitmap::both(&idle, &judged.roster); // without members that left before the round
        let credited = match round.established {
            // If newcomers witness, more than a third of the witnesses can deny all others a quorum, and can be the
            // majority while others are late. So a late witness counts as one that leaves nobody out.
            established_only::NOTHING if round.attestations == round.elected => {
                bitmap::both(&agreed.by_majority, &judged.roster)
            }
            established_only::NOTHING => {
                let majority = quorum::majority(u32::from(round.elected));
                bitmap::without(&judged.roster, &quorum::left_out(attestations.iter(), majority))
            }
            _ => attested,
        };
        let counted =
            Counted { attested: bitmap::either(&credited, &idle), delivered: bitmap::without(&credited, &idle) };
        let delivered = bitmap::without(&attested, &idle);
        Settled { attested: bitmap::either(&attested, &idle), delivered, counted }
    }

    /// Return why the epoch ends after this round, or `exit_reason::NONE`.
    fn why_epoch_ends(&self, round: &Round, unsettled: u32, moment: &Moment) -> u8 {
        let run = &*self.run;
        let config = &run.config;
        let rounds = round.height.saturating_add(1);
        // Every epoch must end, because members that left get their bonds back only after it.
        let max_time = if config.epoch_time > 0 { config.epoch_time } else { validate_config::MAX_TIME };
        if round.attestations == 0 {
            exit_reason::NO_ATTESTATION
        } else if u32::from(round.attestations) < quorum::of_round(round, u32::from(round.elected)) {
            exit_reason::QUORUM_MISSING
        } else if bitmap::count(&self.members.healthy) < u32::from(config.min_clients) {
            exit_reason::TOO_FEW_CLIENTS
        } else if run.step.saturating_add(unsettled) > config.total_steps {
            exit_reason::TOTAL_STEPS
        } else if config.rounds_per_epoch > 0 && rounds >= config.rounds_per_epoch {
            exit_reason::ROUNDS_PER_EPOCH
        } else if elapsed(moment.now, run.epoch_started_at, max_time) {
            exit_reason::EPOCH_TIME
        } else if run.pending_pause == 1 {
            exit_reason::PAUSE
        } else {
            exit_reason::NONE
        }
    }
}
