"""Test that only trained work makes steps: neither time nor votes alone do."""

import pytest

from aftermath.rules.deadlines import next_deadline
from aftermath.rules.state import RunState
from programs.harness import World
from programs.scenario import UNATTESTED, Scenario

IDLE = range(3)


def _attest_nothing(run: Scenario, index: int) -> str | None:
    """Attest no delivery at all, without a wait."""
    metadata = {"step": 1, "loss_milli": 1, "tokens_per_sec": 1, "bytes_per_sec": 1}
    empty = (bytes(32), bytes(320))
    return run.by(index, "witness", run.seat_of(index), run.run.round_id, *empty, metadata).error


@pytest.mark.parametrize("overlap", [0, 1])
def test_idle_wallets_close_no_round_at_once_and_make_no_step(world: World, overlap: int) -> None:
    """They once closed 1,001 rounds within one second, and finished a run of a thousand steps."""
    run = Scenario(world).start(overlap=overlap, rounds_per_epoch=50)
    run.owner("set_future_epoch_rates", 1_000, 0).ok()
    run.train(IDLE)
    for _ in range(20):
        for index in IDLE:
            _attest_nothing(run, index)
    assert run.run.current.height == 0  # no second has passed
    while run.run.state.training:
        world.advance(1)
        height = run.run.current.height
        for index in IDLE:
            _attest_nothing(run, index)
        run.tick()
        assert run.run.current.height <= height + 1
    assert (run.run.state, run.run.step) == (RunState.COOLDOWN, 1)
    world.advance(31)
    run.tick().ok()
    assert (run.run.state, run.run.epoch, run.run.step) == (RunState.WAITING_FOR_MEMBERS, 1, 1)
    assert {slot.points for slot in run.members.seats} == {0}


def test_rounds_without_min_time_still_wait_for_slots(world: World) -> None:
    """A run may have rounds without a minimum time.

    Idle wallets still close no round while the chain stands still, and at most one in four slots
    when it advances.
    """
    run = Scenario(world).start(min_round_time=0, rounds_per_epoch=50)
    run.train(IDLE)
    began = world.slot
    for _ in range(20):
        for index in IDLE:
            _attest_nothing(run, index)
        run.tick().refused("NothingToTick")
    assert run.run.current.height == 0
    while run.run.state.training:
        height = run.run.current.height
        for index in IDLE:
            _attest_nothing(run, index)
        run.tick()
        assert run.run.current.height <= height + 1
        assert 4 * (run.run.current.height - 1) <= world.slot - began
        world.advance(0, 1)
    assert (run.run.state, run.run.step) == (RunState.COOLDOWN, 1)


def test_round_without_minimum_time_ends_with_last_attestation(world: World) -> None:
    """The round ends in its first second, once the slot of the next seed has passed."""
    run = Scenario(world).start(min_round_time=0)
    run.train(IDLE)
    world.advance(0, run.run.seed_slot + 1 - world.slot)
    for index in IDLE:
        assert _attest_nothing(run, index) is None
    assert (run.run.current.height, run.run.state_started_at) == (1, world.now)
    for index in IDLE[:2]:
        assert _attest_nothing(run, index) is None
    # the round has a quorum, but the next one has no seed
    assert next_deadline(run.run) == world.now
    run.tick().refused("NothingToTick")
    world.advance(0, run.run.seed_slot + 1 - world.slot)
    run.tick().ok()
    assert run.run.state is RunState.ROUND_WITNESS
    assert next_deadline(run.run) == world.now + run.run.config.round_witness_time
    assert _attest_nothing(run, IDLE[2]) is None
    assert run.run.current.height == 2


def test_round_lasts_min_round_time(world: World) -> None:
    run = Scenario(world).start(min_round_time=7)
    run.train(IDLE)
    world.advance(3)
    for index in IDLE:
        assert _attest_nothing(run, index) is None
    assert next_deadline(run.run) == run.run.state_started_at + 7
    run.tick().refused("NothingToTick")
    world.advance(3)
    run.tick().refused("NothingToTick")
    world.advance(1)
    run.tick().ok()
    assert run.run.current.height == 1
    assert next_deadline(run.run) == run.run.state_started_at + 20


def test_two_silent_wallets_of_five_use_no_steps(world: World) -> None:
    """They once made the quorum fail in every first round.

    Each epoch counted a step, and twelve epochs finished the run.
    """
    run = Scenario(world).start(init_min_clients=5, total_steps=12, rounds_per_epoch=5)
    for epoch in range(12):
        run.train(range(5))
        while run.run.state is not RunState.WAITING_FOR_MEMBERS:
            for index in range(3):
                _attest_nothing(run, index)
            world.advance(31)
            run.tick()
        assert (run.run.epoch, run.run.step) == (epoch + 1, 1)
    assert run.run.state is not RunState.FINISHED


def test_epoch_without_step_keeps_model(world: World) -> None:
    run = Scenario(world).start()
    run.train(IDLE).finish_rounds()
    for index in IDLE:
        run.attest(index, dict.fromkeys(range(3), b"h" * 32)).ok()
    world.advance(31)
    run.tick().ok()
    attested = run.run
    assert attested.levels_attested == 0b111
    run.train(IDLE)
    while run.run.state.training:
        world.advance(1)
        for index in IDLE:
            _attest_nothing(run, index)
        run.tick()
    cooling = run.run
    assert cooling.state is RunState.COOLDOWN
    assert (cooling.step, cooling.level_hashes) == (attested.step, attested.level_hashes)
    assert UNATTESTED not in cooling.level_hashes
    for index in IDLE:
        run.attest(index, dict.fromkeys(range(3), b"x" * 32))
    assert run.run.level_hashes == attested.level_hashes


def test_steps_are_counted_once_per_settled_round(world: World) -> None:
    """With overlap, a round's step number is ahead of the settled steps.

    A round that nobody delivers takes it back.
    """
    run = Scenario(world).start(rounds_per_epoch=4)
    run.train(IDLE)
    assert (run.run.step, run.run.current.step) == (1, 1)
    run.witness_round()
    assert (run.run.step, run.run.current.step) == (1, 2)
    run.witness_round()
    assert (run.run.step, run.run.current.step) == (2, 3)
    run.witness_round(participation=0)
    assert (run.run.step, run.run.current.step) == (2, 3)
    run.witness_round()
    assert (run.run.step, run.run.current.step, run.run.draining) == (3, 4, True)
    run.witness_round()
    assert (run.run.state, run.run.step) == (RunState.COOLDOWN, 4)
