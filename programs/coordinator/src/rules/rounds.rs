//! Rounds: starting one, closing one, and what follows.

use super::{agreement, agreement::Votes, assignment, assignment::Plan, backlog, backlog::Gaps, batch, bitmap};
use super::{committee, moment::elapsed, quorum, seeds, validate_config, weights, weights::Counted, Machine, Moment};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use bytemuck::Zeroable;

/// What a closed round has settled of the round that it judges.
struct Settled {
    /// Members of whom a quorum of the witnesses holds the same result, or who owed none.
    attested: Bitmap,
    /// Those of them who owed one: if there are any, it was a step.
    delivered: Bitmap,
    /// What is remembered of its members.
    counted: Counted,
}

impl Machine<'_> {
    /// Starts round `height` with the seed that is drawn and the members that were there when it was not; the drain round,
    /// which a run with overlap needs, has no data. `unsettled`: steps of the epoch that are not made yet and may be.
    #[inline(never)]
    pub fn start_round(&mut self, moment: &Moment, (height, unsettled): (u32, u32)) {
        let run = &mut *self.run;
        let (seed, roster) = (run.next_seed, run.next_roster);
        let wanted = if run.draining == 1 { 0 } else { batch::size(&run.config, run.data_index) };
        let backlog = &mut self.witnesses.backlog;
        let (redo_index, redo) = backlog.take(run, wanted);
        let again = redo.iter().fold(0, |sum: u16, len| sum.saturating_add(*len));
        let previous = run.head as usize;
        run.head = if height == 0 { 0 } else { (run.head + 1) % STORED_ROUNDS as u8 };
        let mut seated = bitmap::both(&roster, &self.members.healthy);
        let mut established = established_only::NOTHING;
        let mut most = if backlog.has_room(0) { wanted } else { 0 };
        // Settled by those that began the epoch: otherwise one established member of three that leaves would give
        // newcomers the vote.
        let only_established = if height == 0 {
            committee::only_established_witness(run, self.members)
        } else {
            run.rounds[previous].established != established_only::NOTHING
        };
        let mut nodes = run.config.witness_nodes;
        if only_established {
            // A quorum of established witnesses is two or more, so a config that asks for one elects two.
            nodes = if nodes == 1 { 2 } else { nodes };
            seated = bitmap::both(&seated, &self.members.judges);
            established = established_only::WITNESS;
            let others = !bitmap::is_subset(&roster, &self.members.judges);
            if others && !backlog.has_room(BACKLOG / 2) && run.config.verification_percent == 0 {
                established = established_only::TRAIN;
                most = assignment::established_share(self.members, &roster, most);
            }
        }
        let batch = most.max(again);
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
            elected: committee::elected(nodes, bitmap::count(&seated) as u16),
            attestations: 0,
            roster,
            attested: Bitmap::zeroed(),
            made_step: 0,
            established,
        };
        run.data_index = run.data_index.saturating_add(u64::from(batch - again));
        run.next_roster = self.members.healthy;
        if run.draining == 0 {
            seeds::fix(run, moment);
        }
        self.witnesses.rounds[run.head as usize].verdict_count = 0;
        self.enter(run_state::ROUND_TRAIN, moment);
    }

    /// Closes the current round: results, untrained data, step, and the round or phase that follows.
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
        if self.run.draining == 1 {
            return self.start_cooldown(moment);
        }
        let overlap = self.run.config.overlap == 1; // its own results wait for the next round's witnesses
        let unsettled = u32::from(overlap && round.batch > 0);
        let reason = self.why_epoch_ends(&round, unsettled, moment);
        self.run.exit_reason = reason;
        if reason == exit_reason::NO_ATTESTATION && overlap {
            self.witnesses.backlog.put(self.run, &backlog::whole(&round));
        }
        if reason == exit_reason::NO_ATTESTATION || (reason != exit_reason::NONE && !overlap) {
            return self.start_cooldown(moment);
        }
        self.run.draining = u8::from(reason != exit_reason::NONE);
        let height = round.height.checked_add(1).ok_or(CoordinatorError::Overflow)?;
        self.start_round(moment, (height, unsettled));
        Ok(())
    }

    /// Returns who delivered in the `judged` round. The rest of its data is untrained; if the backlog has no room for
    /// that, then all of it is.
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
        let (mut idle, mut gaps) = (Bitmap::zeroed(), Gaps::new());
        let plan = Plan::new(&judged, &self.run.began, self.members, self.run.config.verification_percent);
        for share in plan.shares() {
            if share.len == 0 {
                bitmap::set(&mut idle, share.seat);
            } else if !bitmap::has(&attested, share.seat) {
                gaps.add(share.start, share.len);
            }
        }
        let mut untrained = gaps.intervals(&judged);
        if !untrained.is_empty() && !self.witnesses.backlog.has_room(untrained.len()) {
            (attested, untrained) = (Bitmap::zeroed(), backlog::whole(&judged));
        }
        self.witnesses.backlog.put(self.run, &untrained);
        let idle = bitmap::both(&idle, &judged.roster); // who had gone before has no part in it
        let most = match round.established {
            // Where newcomers witness, more than a third of the witnesses can keep all others from a quorum, and is the
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
        let counted = Counted { attested: bitmap::either(&most, &idle), delivered: bitmap::without(&most, &idle) };
        let delivered = bitmap::without(&attested, &idle);
        Settled { attested: bitmap::either(&attested, &idle), delivered, counted }
    }

    /// Why the epoch ends after this round, if it does.
    fn why_epoch_ends(&self, round: &Round, unsettled: u32, moment: &Moment) -> u8 {
        let (run, config) = (&*self.run, &self.run.config);
        let rounds = round.height.saturating_add(1);
        // members that left have their bonds back once the epoch has ended, so it must end
        let longest = if config.epoch_time > 0 { config.epoch_time } else { validate_config::MAX_TIME };
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
        } else if elapsed(moment.now, run.epoch_started_at, longest) {
            exit_reason::EPOCH_TIME
        } else if run.pending_pause == 1 {
            exit_reason::PAUSE
        } else {
            exit_reason::NONE
        }
    }
}
