"""How long a run waits for established members before its next epoch."""

from __future__ import annotations

from collections.abc import Mapping

from aftermath.rules import bitmap
from aftermath.rules.deadlines import HOLDERS_WAIT, next_deadline
from aftermath.rules.state import ModelSource, RunState
from programs.harness import Outcome, World
from programs.scenario import Scenario
from programs.test_programs_undone_epochs import (
    HASHES,
    NEWCOMERS,
    attest,
    begin,
    end,
    founded,
    join,
    known,
    train,
)

HALF_DAY = HOLDERS_WAIT // 2
THREE = {0: 0, 1: 1, 2: 2}


def checkpoint(run: Scenario, index: int, hashes: Mapping[int, bytes]) -> Outcome:
    """Let a member record a checkpoint on the Hub."""
    place = {"kind": 1, "repo": f"team/{index}", "revision": "r1"}
    return run.by(index, "checkpoint", place | {"hashes": list(hashes.values())})


def claim_for_newcomers(run: Scenario) -> None:
    """Make the newcomers the only finishers of the last epoch."""
    record = run.world.record("Run", "test")
    newcomers = bitmap.from_seats(run.seat_of(index) for index in NEWCOMERS)
    record["finishers"][0] = bitmap.to_bytes(newcomers)
    run.world.store("Run", "test", record)


def test_member_that_joins_and_leaves_adds_no_second_day(world: World) -> None:
    run = founded(world, THREE, saved=True)
    join(run, dict.fromkeys(NEWCOMERS, 0))
    waited = 0
    while run.run.state is RunState.WAITING_FOR_MEMBERS and waited < 3 * HOLDERS_WAIT:
        run.join(2, tier=2).ok()
        run.by(2, "leave_run").ok()
        world.advance(HALF_DAY)
        waited += HALF_DAY
        run.tick(20)
    assert (run.run.state, waited) == (RunState.WARMUP, HOLDERS_WAIT)


def test_first_returner_restarts_time_for_latecomers_in_a_day(world: World) -> None:
    run = founded(world, THREE, saved=True)
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(HALF_DAY)
    run.join(2, tier=2).ok()
    deadline = next_deadline(run.run, run.members, run.model)
    assert deadline == world.now + run.run.config.waiting_for_members_extra_time
    run.tick(20).refused("NothingToTick")
    run.by(2, "leave_run").ok()
    deadline = next_deadline(run.run, run.members, run.model)
    assert deadline == run.run.waiting_since + HOLDERS_WAIT == world.now + HALF_DAY


def test_only_established_member_back_waits_for_nobody(world: World) -> None:
    """It was killed in the first round of an epoch. No other established member can come."""
    run = founded(world, {0: 0}, saved=True, init_min_clients=1, min_clients=1, witness_nodes=0)
    before = known(run)
    join(run, {0: 0})
    world.advance(36)
    run.tick(0).ok()
    begin(run, 0)
    train(run, 0, lambda index, height: None, drops=[0])
    end(run, 0)
    assert known(run) == before, "the epoch made no step"
    join(run, {0: 0})
    deadline = next_deadline(run.run, run.members, run.model)
    assert deadline == world.now + run.run.config.waiting_for_members_extra_time
    world.advance(run.run.config.waiting_for_members_extra_time)
    run.tick(0).ok()
    assert run.run.state is RunState.WARMUP


def test_newcomers_wait_a_day_if_nobody_attested_last_epoch(world: World) -> None:
    """A checkpoint has every level that they will load."""
    run = founded(world, THREE, saved=True)
    join(run, THREE)
    world.advance(6)
    run.tick(0).ok()
    begin(run, 0)
    train(run, 0, lambda index, height: ~0)
    attest(run, [])
    end(run, 0)
    assert run.run.levels_attested == 0
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(HOLDERS_WAIT - 1)
    run.tick(20).refused("NothingToTick")
    world.advance(1)
    run.tick(20).ok()
    assert run.run.state is RunState.WARMUP


def test_claim_of_newcomers_without_step_lasts_one_epoch(world: World) -> None:
    """The only holder restarts in the warm-up, and only a wallet without the model is left."""
    run = founded(world, {0: 0}, init_min_clients=1, min_clients=1, witness_nodes=0)
    idle = 20
    sources = []
    for _ in range(3):
        run.join(0, tier=0, stateless=bool(sources)).ok()
        run.join(idle, tier=0).ok()
        world.advance(6)
        run.tick(idle).ok()
        assert run.run.state is RunState.WARMUP
        sources.append(run.run.model_source)
        run.join(0, tier=0, stateless=True).ok()  # it was restarted, or could not load the model
        begin(run, idle)
        train(run, idle, lambda index, height: None)
        end(run, idle)
    assert sources == [ModelSource.PEERS, ModelSource.PEERS, ModelSource.CHECKPOINT]


def test_first_returner_after_a_day_leaves_time_for_others(world: World) -> None:
    """No checkpoint has the model, so only newcomers wait, without limit."""
    run = founded(world, THREE)
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(HOLDERS_WAIT + HALF_DAY)
    run.tick(20).refused("NothingToTick")
    run.join(2, tier=2).ok()
    wait = run.run.config.waiting_for_members_extra_time + run.run.config.warmup_time
    assert next_deadline(run.run, run.members, run.model) == world.now + wait
    run.tick(20).refused("NothingToTick")
    join(run, {0: 0, 1: 1})
    world.advance(6)
    run.tick(20).ok()
    assert (run.run.model_source, run.run.levels_lost) == (ModelSource.PEERS, 0)


def test_rejoin_after_a_day_does_not_move_deadline(world: World) -> None:
    run = founded(world, THREE)
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(HOLDERS_WAIT + HALF_DAY)
    run.join(2, tier=2).ok()
    wait = run.run.config.waiting_for_members_extra_time + run.run.config.warmup_time
    deadline = world.now + wait
    for _ in range(2):
        run.by(2, "leave_run").ok()
        world.advance(10)
        run.join(2, tier=2).ok()
        assert next_deadline(run.run, run.members, run.model) == deadline


def test_join_after_a_day_begins_epoch_that_is_due(world: World) -> None:
    """Otherwise a member could stop the run by joining and leaving in the same second as the
    deadline.
    """
    run = founded(world, THREE, saved=True)
    run.owner("set_paused", True).ok()
    run.owner("rewind", 0, run.model.checkpoint_step).ok()
    run.owner("set_paused", False).ok()
    join(run, dict.fromkeys(NEWCOMERS, 0))
    world.advance(HOLDERS_WAIT - 10)
    run.join(2, tier=2).ok()  # the time for latecomers starts again
    run.by(2, "leave_run").ok()
    wait = run.run.config.waiting_for_members_extra_time + run.run.config.warmup_time
    world.advance(wait - 1)
    run.tick(20).refused("NothingToTick")
    world.advance(1)
    run.join(2, tier=2).ok()
    assert run.run.state is RunState.WARMUP


def test_established_member_takes_over_claim_of_newcomers(world: World) -> None:
    """It loaded the model from finishers that are not established, and no step followed."""
    run = founded(world, {0: 0}, init_min_clients=1, min_clients=1, witness_nodes=0)
    join(run, {0: 0} | dict.fromkeys(NEWCOMERS, 0))
    claim_for_newcomers(run)
    world.advance(6)
    run.tick(0).ok()
    begin(run, 0)
    train(run, 0, lambda index, height: None)
    end(run, 0)
    assert run.run.step == run.run.start_step
    assert run.run.finishers == 1 << run.seat_of(0)
    assert run.run.model_source is ModelSource.PEERS


def test_delivery_in_undone_epoch_permits_no_checkpoint(world: World) -> None:
    """Newcomers have a claim on the model, and outvote the only judge of the next epoch."""
    run = founded(world, THREE)
    before = known(run)[:5]
    join(run, {0: 0} | dict.fromkeys(NEWCOMERS, 0))
    claim_for_newcomers(run)
    newcomers = run.run.finishers
    world.advance(HOLDERS_WAIT)
    run.tick(0).ok()
    begin(run, 0)
    train(run, 0, lambda index, height: newcomers if index in NEWCOMERS else ~0)
    assert run.run.step > run.run.start_step
    end(run, NEWCOMERS[0])
    assert (run.run.state, known(run)[:5]) == (RunState.WAITING_FOR_MEMBERS, before)
    assert (run.run.finishers, run.members.proven) == (0, 0)
    for index in NEWCOMERS:
        checkpoint(run, index, HASHES).refused("NotAllowedToCheckpoint")


def test_undone_epoch_leaves_weights_of_established_members(world: World) -> None:
    """Newcomers outvote the two founders that are there. The third one comes back later."""
    run = founded(world, THREE, saved=True)
    join(run, {0: 0, 1: 1} | dict.fromkeys(NEWCOMERS, 0))
    seats = [run.seat_of(index) for index in (*THREE, *NEWCOMERS)]
    newcomers = bitmap.from_seats(run.seat_of(index) for index in NEWCOMERS)
    world.advance(HOLDERS_WAIT)
    run.tick(0).ok()
    begin(run, 0)
    before = [run.members.seats[seat].weight for seat in seats]
    assert min(before[:3]) > 1
    train(run, 0, lambda index, height: newcomers)
    end(run, NEWCOMERS[0])
    assert run.run.step == run.run.start_step, "the epoch is undone"
    assert [run.members.seats[seat].weight for seat in seats] == [*before[:3], 0, 0, 0, 0]


def test_established_members_get_claim_in_epoch_without_step(world: World) -> None:
    """They loaded the model from the only finisher, which may leave the run now."""
    run = founded(world, THREE)
    record = world.record("Run", "test")
    record["finishers"][0] = bitmap.to_bytes(1 << run.seat_of(0))
    world.store("Run", "test", record)
    join(run, THREE)
    world.advance(6)
    run.tick(0).ok()
    begin(run, 0)
    train(run, 0, lambda index, height: None)
    end(run, 0)
    assert run.run.step == run.run.start_step
    assert run.run.finishers == bitmap.from_seats(run.seat_of(index) for index in THREE)
