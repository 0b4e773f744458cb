//! The transitions between a run's states: decide which one is due, and perform it.
//!
//! An instruction performs at most one transition, which bounds its cost.

use super::{bitmap, level_holders, levels, members, moment::elapsed, quorum, seeds, sequence, Moment};
use crate::{
    constants::{Bitmap, HOLDERS_WAIT},
    state::*,
};
use anchor_lang::prelude::*;

/// How many trusted holders of levels that no durable checkpoint contains are absent.
enum Away {
    Nobody,
    /// Some are. The run waits `warmup_time` longer for them.
    Some,
    /// All are, or all trusted holders of one level are and only other finishers claim to hold it. The run waits a day
    /// for the absent holders. If only newcomers are present, it waits without limit, until the owner replaces the
    /// model (`rewind`).
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
    /// Draw the seed and perform the transition, if they are due. Return whether either of them was.
    #[inline(never)]
    pub fn tick(&mut self, moment: &Moment) -> Result<bool> {
        let drawn = seeds::draw(self.run, moment);
        let transitioned = self.transition(moment)?;
        Ok(drawn || transitioned)
    }

    fn transition(&mut self, moment: &Moment) -> Result<bool> {
        match self.run.state {
            run_state::WAITING_FOR_MEMBERS => Ok(self.tick_waiting(moment)),
            run_state::WARMUP => Ok(self.tick_warmup(moment)),
            run_state::ROUND_TRAIN => self.tick_train(moment),
            run_state::ROUND_WITNESS => self.tick_witness(moment),
            run_state::COOLDOWN => self.tick_cooldown(moment),
            _ => Ok(false),
        }
    }

    /// Perform the transition that another instruction makes due. Unlike `tick`, this does not end a cooldown because
    /// its time is up: after an outage, the first member to attest or join would cut off attestations that are still in
    /// flight.
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

    /// Enter `state` at this moment.
    pub fn enter(&mut self, state: u8, moment: &Moment) {
        self.run.enter(state, moment.now);
    }

    fn elapsed(&self, moment: &Moment, duration: u64) -> bool {
        elapsed(moment.now, self.run.state_started_at, duration)
    }

    fn tick_waiting(&mut self, moment: &Moment) -> bool {
        let pending = members::pending(self.members);
        let extra = u64::from(self.run.config.waiting_for_members_extra_time);
        let longest_wait = self.run.config.longest_latecomer_wait();
        let mut awaits_a_day = false;
        let mut wait = match self.away(&pending) {
            Away::Nobody => extra,
            Away::Some => longest_wait,
            // The wait has a limit, or one holder could stop the run by leaving.
            Away::All if self.known_member_waits(&pending) => {
                awaits_a_day = true;
                longest_wait
            }
            Away::All => return false,
        };
        if !bitmap::is_empty(&members::expected(self.run, self.members, &pending)) {
            // After a `rewind`, the owner has chosen the model, so established members need only the time to join
            // again.
            if self.run.epoch_started_at == 0 {
                wait = longest_wait;
            } else {
                awaits_a_day = true;
            }
        }
        let day_is_over = elapsed(moment.now, self.run.waiting_since, HOLDERS_WAIT);
        if awaits_a_day && !day_is_over || !self.elapsed(moment, wait) {
            return false;
        }
        if bitmap::count(&pending) < u32::from(self.run.config.init_min_clients) {
            return false;
        }
        self.start_epoch(&pending, moment);
        true
    }

    /// Return which of the trusted finishers that the next epoch needs are absent. Without them, a level would go back
    /// to the durable checkpoint.
    #[inline(never)]
    fn away(&self, pending: &Bitmap) -> Away {
        if self.run.model_source != model_source::PEERS {
            return Away::Nobody;
        }
        let held = levels::held(self.run, self.model, self.members, pending);
        if held.by_absent == 0 {
            Away::Nobody
        } else if held.by_waiting == 0 {
            Away::All
        } else {
            Away::Some
        }
    }

    /// Return whether an established member or a finisher waits for the next epoch.
    #[inline(never)]
    fn known_member_waits(&self, pending: &Bitmap) -> bool {
        bitmap::intersects(&bitmap::either(&self.members.established, &self.run.finishers), pending)
    }

    fn tick_warmup(&mut self, moment: &Moment) -> bool {
        if bitmap::count(&self.members.healthy) < u32::from(self.run.config.min_clients) {
            self.abandon_warmup(moment);
            return true;
        }
        if self.seed_is_missing() {
            return false;
        }
        let round = &self.run.rounds[0];
        let ready = bitmap::count(&round.attested) >= quorum::of_round(round, u32::from(round.elected));
        if !ready && !self.elapsed(moment, self.run.config.warmup_time) {
            return false;
        }
        level_holders::begin(self.run, self.members);
        sequence::bump(&mut self.run.members_seq); // the level scores begin again
        self.start_round(moment, 0, 0);
        true
    }

    fn tick_train(&mut self, moment: &Moment) -> Result<bool> {
        let min_time = self.run.config.min_round_time;
        if self.seed_is_missing() || (min_time > 0 && !self.elapsed(moment, min_time)) {
            return Ok(false);
        }
        let round = self.run.current();
        let has_quorum = u32::from(round.attestations) >= quorum::of_round(round, u32::from(round.elected));
        if self.all_have_attested() {
            self.close_round(moment)?;
            return Ok(true);
        }
        if !has_quorum && !self.elapsed(moment, self.run.config.max_round_train_time) {
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

    /// Return whether the next seed is not drawn yet. The next round cannot begin before.
    fn seed_is_missing(&self) -> bool {
        self.run.seed_slot != 0
    }

    /// Return whether all elected witnesses have attested the running round.
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
