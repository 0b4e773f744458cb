//! Start, abandon, pay and end epochs, and pause the run.

use super::{
    bitmap, committee, level_holders, levels, members, provisional, seeds, sequence, weights, Machine, Moment,
};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use bytemuck::Zeroable;

impl Machine<'_> {
    /// Start the warm-up with the `pending` members: all that wait.
    #[inline(never)]
    pub fn start_epoch(&mut self, pending: &Bitmap, moment: &Moment) {
        let Members { seats, established, .. } = &mut *self.members;
        for (index, seat) in seats.iter_mut().take_while(|seat| seat.used == 1).enumerate() {
            let begins = seat.pending == pending::WAITS;
            seat.state = if begins { member_state::HEALTHY } else { member_state::IDLE };
            if begins {
                seat.pending = pending::NONE;
                seat.exited_height = 0;
                seat.last_epoch = self.run.epoch;
            }
            if seat.pending == pending::BARRED {
                bitmap::clear(established, index as u8);
            }
        }
        provisional::demote(self.run, self.model, self.members, pending);
        self.members.epoch = self.run.epoch;
        weights::begin(self.members);
        let run = &mut *self.run;
        sequence::bump(&mut run.members_seq);
        level_holders::appoint(self.members, pending);
        if provisional::is_at_risk(self.members) {
            provisional::remember(run, self.members, &self.witnesses.backlog);
        }
        if run.model_source == model_source::PEERS {
            let held = levels::held(run, self.model, self.members, pending).by_waiting;
            // Nobody holds these levels, so no retry could load them.
            let lost = levels::beyond_durable(run, self.model) & !held;
            if held == 0 || lost != 0 {
                provisional::remember(run, self.members, &self.witnesses.backlog);
            }
            if held == 0 {
                levels::use_durable(run, self.model);
            } else {
                levels::go_back(run, self.model, lost);
            }
            run.levels_lost |= lost; // in addition to the levels that the last epoch lost
        }
        run.epoch_started_at = moment.now;
        run.start_step = run.step;
        run.earning_rate = run.future_earning_rate;
        run.slashing_rate = run.future_slashing_rate;
        run.exit_reason = exit_reason::NONE;
        run.draining = 0;
        let seed = seeds::name(run.current().seed, moment);
        seeds::fix(run, moment);
        let clients = bitmap::count(pending) as u16;
        let elected = committee::elected(run.config.witness_nodes, clients);
        let step = run.step;
        let roster = *pending;
        run.began = roster;
        run.next_roster = roster;
        self.members.healthy = roster;
        run.levels_established = 0; // set when the rounds begin
        run.head = 0;
        run.rounds = [Round::zeroed(); STORED_ROUNDS];
        run.rounds[0] = Round { seed, step, clients, elected, roster, ..Round::zeroed() };
        self.enter(run_state::WARMUP, moment);
    }

    /// Abandon the warm-up, because too few members are left. The remaining members must join again. If they joined
    /// automatically, every attempt would rely on a dead member as the holder of a model that nobody has.
    #[inline(never)]
    pub fn abandon_warmup(&mut self, moment: &Moment) {
        weights::reset_newcomers(self.members);
        members::set_all_idle(self.members);
        members::remove_unwanted_finishers(self.run, self.members);
        provisional::restore(self.run, self.members, &mut self.witnesses.backlog);
        let run = &mut *self.run;
        if run.cold_start == 1 && run.model_source == model_source::DURABLE && bitmap::is_empty(&run.finishers) {
            run.epoch_started_at = 0; // the next epoch is still the first one after `rewind`
        }
        if has_unproven_claims(run, self.members) {
            run.finishers = [0; 32];
        }
        sequence::bump(&mut run.members_seq);
        self.enter(run_state::WAITING_FOR_MEMBERS, moment);
    }

    /// Pay the members, record who holds the model, and return all members to idle. `unknown` is the mask of the levels
    /// that go back to the durable checkpoint (`conclude`).
    #[inline(never)]
    pub fn end_epoch(&mut self, unknown: u8, moment: &Moment) -> Result<()> {
        let healthy = self.members.healthy;
        let undone = provisional::restore(self.run, self.members, &mut self.witnesses.backlog);
        if undone {
            weights::reset_newcomers(self.members);
        } else {
            weights::end(self.members);
        }
        self.pay(bitmap::count(&healthy));
        sequence::bump(&mut self.run.members_seq);
        if !undone {
            self.record_finishers(&healthy, unknown);
        } else if has_unproven_claims(self.run, self.members) {
            self.run.finishers = [0; 32];
        }
        let run = &mut *self.run;
        run.epoch = run.epoch.checked_add(1).ok_or(CoordinatorError::Overflow)?;
        if run.pending_pause == 1 {
            pause(run, self.members, &mut self.witnesses.backlog, moment.now);
            return Ok(());
        }
        run.cold_start = 0;
        let finished = run.step > run.config.total_steps;
        if finished {
            members::clear_waiting(self.members);
        }
        self.enter(if finished { run_state::FINISHED } else { run_state::WAITING_FOR_MEMBERS }, moment);
        Ok(())
    }

    /// Record who holds the model. `healthy` members finished the epoch; if it made a step and some of them are
    /// established, only these count.
    ///
    /// An epoch without a step leaves the model as it was. So earlier finishers that did not leave keep their claim,
    /// and established members get one. If all earlier finishers left, newcomers may have loaded the model from them
    /// and get a claim for one epoch.
    fn record_finishers(&mut self, healthy: &Bitmap, unknown: u8) {
        let run = &mut *self.run;
        let made_step = run.step != run.start_step;
        let newcomers_judged = run.current().established == established_only::NOTHING;
        let keep_judges = newcomers_judged && provisional::is_at_risk(self.members);
        level_holders::end(self.members, healthy, keep_judges);
        let mut holders = *healthy;
        let established = bitmap::both(healthy, &self.members.established);
        if made_step && !bitmap::is_empty(&established) {
            holders = established;
        }
        if !made_step && run.model_source == model_source::PEERS {
            let left = bitmap::without(&run.began, healthy);
            let remaining = bitmap::without(&run.finishers, &left);
            if has_unproven_claims(run, self.members) {
                holders = established;
            } else if !bitmap::is_empty(&remaining) {
                holders = bitmap::either(&remaining, &established);
            }
        }
        run.finishers = bitmap::without(&holders, &members::unwanted(self.members));
        levels::go_back(run, self.model, unknown);
        if made_step {
            run.levels_lost = unknown;
        }
        if unknown == levels::all(run.levels) {
            levels::use_durable(run, self.model);
        } else if run.levels_attested != 0 && run.attested_step == run.step {
            run.model_source = model_source::PEERS;
        } else if run.model_source == model_source::DURABLE {
            levels::use_durable(run, self.model);
        }
    }

    /// Pay the epoch's points in equal parts to the members that stayed, take points from ejected members, and return
    /// all members to idle. An epoch without a step, or one that was undone, pays nobody.
    fn pay(&mut self, healthy: u32) {
        let worked = self.run.step > self.run.start_step;
        let share = self.run.earning_rate.checked_div(u64::from(healthy)).unwrap_or(0);
        let Members { seats, established, .. } = &mut *self.members;
        // Eight at a time: checking each seat for use would cost half as much again.
        for (byte, seats) in seats.chunks_exact_mut(8).take_while(|seats| seats[0].used == 1).enumerate() {
            for (bit, seat) in seats.iter_mut().enumerate() {
                if seat.state == member_state::HEALTHY && worked {
                    seat.points = seat.points.saturating_add(share);
                } else if seat.state == member_state::EJECTED {
                    bitmap::clear(established, (8 * byte + bit) as u8);
                    let taken = seat.points.min(self.run.slashing_rate);
                    seat.points -= taken;
                    seat.slashed = seat.slashed.saturating_add(taken);
                }
                seat.state = member_state::IDLE;
            }
        }
        self.members.healthy = [0; 32];
    }
}

/// Return whether finishers exist and none of them is established. Such finishers may not have the model. Members that
/// cannot load it from them leave, so the same wallets could prevent the run from ever returning to its checkpoint.
#[inline(never)]
fn has_unproven_claims(run: &Run, members: &Members) -> bool {
    !bitmap::is_empty(&run.finishers) && !bitmap::intersects(&run.finishers, &members.established)
}

/// Halt the run. Members that wait must join again, and the next epoch is a cold start.
#[inline(never)]
pub fn pause(run: &mut Run, members: &mut Members, backlog: &mut Backlog, now: u64) {
    if run.state == run_state::WARMUP {
        weights::reset_newcomers(members);
        members::remove_unwanted_finishers(run, members);
        provisional::restore(run, members, backlog);
    }
    members::clear_waiting(members);
    members::set_all_idle(members);
    sequence::bump(&mut run.members_seq);
    run.pending_pause = 0;
    run.cold_start = 1;
    run.enter(run_state::PAUSED, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_without_step_keeps_finishers_and_levels() {
        let mut run = Run::zeroed();
        let model = Model::zeroed();
        let mut members = Members::zeroed();
        let mut witnesses = Witnesses::zeroed();
        let newcomer = bitmap::only(6);
        members.established = bitmap::only(0); // an established finisher that was not in the epoch
        for (step, finishers, unknown) in [(7, 0b0001_1111, 0), (8, 0b0100_0000, 0b111)] {
            run.step = step;
            run.start_step = 7;
            run.levels = 3;
            run.model_source = model_source::PEERS;
            run.level_hashes = [levels::UNATTESTED; MAX_LEVELS];
            run.finishers[0] = 0b0011_1111;
            run.began[0] = 0b0110_0000;
            members.healthy = newcomer;
            let mut machine =
                Machine { run: &mut run, model: &model, members: &mut members, witnesses: &mut witnesses };
            assert_eq!(machine.conclude(true), unknown);
            machine.record_finishers(&newcomer, 0);
            assert_eq!(run.finishers[0], finishers);
        }
    }
}
