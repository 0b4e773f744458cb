//! The state machine: which transition is due, and when.
//!
//! At most one transition happens per instruction, so that its cost is bounded.

use super::{bitmap, holders, levels, members, moment::elapsed, quorum, seeds, sequence, Moment};
use crate::{
    constants::{Bitmap, HOLDERS_WAIT},
    state::*,
};
use anchor_lang::prelude::*;

/// Which holders of what no durable checkpoint has are not there.
enum Away {
    Nobody,
    /// They are waited for as long as a warm-up lasts.
    Some,
    /// They are waited for a day, and for ever where newcomers alone wait: wallets that wait together must not replace
    /// what a run knows of its model. The owner may (`rewind`).
    All,
}

/// The four accounts of a run as the rules see them.
pub struct Machine<'a> {
    pub run: &'a mut Run,
    pub model: &'a Model,
    pub members: &'a mut Members,
    pub witnesses: &'a mut Witnesses,
}

impl Machine<'_> {
    /// Draws the seed and performs the transition that are due; returns whether there was one of them.
    #[inline(never)]
    pub fn tick(&mut self, moment: &Moment) -> Result<bool> {
        let drawn = seeds::draw(self.run, moment);
        let moved = self.transition(moment)?;
        Ok(drawn || moved)
    }

    fn transition(&mut self, moment: &Moment) -> Result<bool> {
        match self.run.state {
            run_state::WAITING_FOR_MEMBERS => self.tick_waiting(moment),
            run_state::WARMUP => self.tick_warmup(moment),
            run_state::ROUND_TRAIN => self.tick_train(moment),
            run_state::ROUND_WITNESS => self.tick_witness(moment),
            run_state::COOLDOWN => self.tick_cooldown(moment),
            _ => Ok(false),
        }
    }

    /// The transition that another instruction brings about. Time alone does not end a cooldown then: after an outage,
    /// the first member to attest or to join would cut off those whose attestations are still on their way.
    #[inline(never)]
    pub fn follow(&mut self, moment: &Moment) -> Result<()> {
        if self.run.state != run_state::COOLDOWN {
            self.tick(moment)?;
        } else if self.epoch_is_safe() {
            let unknown = self.conclude(false);
            self.end_epoch(unknown, moment)?;
        }
        Ok(())
    }

    /// Enters `state` at this moment.
    pub fn enter(&mut self, state: u8, moment: &Moment) {
        self.run.state = state;
        self.run.state_started_at = moment.now;
    }

    fn elapsed(&self, moment: &Moment, duration: u64) -> bool {
        elapsed(moment.now, self.run.state_started_at, duration)
    }

    fn tick_waiting(&mut self, moment: &Moment) -> Result<bool> {
        let pending = members::pending(self.members);
        let extra = u64::from(self.run.config.waiting_for_members_extra_time);
        let wait = match self.away(&pending) {
            Away::Nobody => extra,
            Away::Some => extra.saturating_add(self.run.config.warmup_time),
            // or one holder could stop the run by leaving
            Away::All if self.anyone_known(&pending) => {
                extra.saturating_add(self.run.config.warmup_time).max(HOLDERS_WAIT)
            }
            Away::All => return Ok(false),
        };
        let expected = members::expected(self.run, self.members, &pending);
        let wait = if bitmap::is_empty(&expected) { wait } else { wait.max(HOLDERS_WAIT) };
        if !self.elapsed(moment, wait) {
            return Ok(false);
        }
        if bitmap::count(&pending) < u32::from(self.run.config.init_min_clients) {
            return Ok(false);
        }
        self.start_epoch(&pending, moment)?;
        Ok(true)
    }

    /// Returns which finishers do not wait, of those who hold a level beyond the durable checkpoint: an epoch without them
    /// would take it back to there.
    #[inline(never)]
    fn away(&self, pending: &Bitmap) -> Away {
        let run = &*self.run;
        if run.model_source != model_source::PEERS {
            return Away::Nobody;
        }
        let finishers = levels::trusted(run, self.members);
        let held = levels::held_by(run, self.members, &finishers);
        let here = levels::held_by(run, self.members, &bitmap::both(&finishers, pending));
        if held & !here & levels::beyond_durable(run, self.model) == 0 {
            Away::Nobody
        } else if here == 0 {
            Away::All
        } else {
            Away::Some
        }
    }

    /// Whether anyone waits who delivered in an epoch before, or finished the last one.
    #[inline(never)]
    fn anyone_known(&self, pending: &Bitmap) -> bool {
        bitmap::intersects(&bitmap::either(&self.members.established, &self.run.finishers), pending)
    }

    fn tick_warmup(&mut self, moment: &Moment) -> Result<bool> {
        if bitmap::count(&self.members.healthy) < u32::from(self.run.config.min_clients) {
            self.abandon_warmup(moment)?;
            return Ok(true);
        }
        if self.seed_is_missing() {
            return Ok(false);
        }
        let round = &self.run.rounds[0];
        let ready = bitmap::count(&round.attested) >= quorum::of(u32::from(round.elected));
        if !ready && !self.elapsed(moment, self.run.config.warmup_time) {
            return Ok(false);
        }
        holders::begin(self.run, self.members);
        sequence::bump(&mut self.run.members_seq)?; // who was short of levels before is no more
        self.start_round(moment, (0, 0));
        Ok(true)
    }

    fn tick_train(&mut self, moment: &Moment) -> Result<bool> {
        let least = self.run.config.min_round_time;
        if self.seed_is_missing() || (least > 0 && !self.elapsed(moment, least)) {
            return Ok(false);
        }
        let round = self.run.current();
        let quorum = u32::from(round.attestations) >= quorum::of(u32::from(round.elected));
        if self.all_have_attested() {
            self.close_round(moment)?;
            return Ok(true);
        }
        if !quorum && !self.elapsed(moment, self.run.config.max_round_train_time) {
            return Ok(false);
        }
        self.enter(run_state::ROUND_WITNESS, moment);
        Ok(true)
    }

    fn tick_witness(&mut self, moment: &Moment) -> Result<bool> {
        if !self.all_have_attested() && !self.elapsed(moment, self.run.config.round_witness_time) {
            return Ok(false);
        }
        self.close_round(moment)?;
        Ok(true)
    }

    /// The slot that the next seed is drawn from has not passed: the next round cannot begin yet.
    fn seed_is_missing(&self) -> bool {
        self.run.seed_slot != 0
    }

    /// Nobody is left who could still attest the running round.
    fn all_have_attested(&self) -> bool {
        let round = self.run.current();
        round.attestations >= round.elected
    }

    fn tick_cooldown(&mut self, moment: &Moment) -> Result<bool> {
        let safe = self.epoch_is_safe();
        if !safe && !self.elapsed(moment, self.run.config.cooldown_time) {
            return Ok(false);
        }
        let unknown = self.conclude(!safe);
        self.end_epoch(unknown, moment)?;
        Ok(true)
    }
}
