"""Test cooldowns that time out with silent holders: half of them suffice if nobody disagrees."""

from __future__ import annotations

from aftermath.rules.state import ModelSource, RunState
from programs.harness import World
from programs.scenario import UNATTESTED, Scenario

HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}


def _two_holders(world: World) -> Scenario:
    """Return a run in cooldown with two members of tier 0 and two of tier 2."""
    run = Scenario(world).start(rounds_per_epoch=1, init_min_clients=4)
    for index, tier in enumerate((0, 0, 2, 2)):
        run.join(index, tier=tier).ok()
    world.advance(6)
    run.tick().ok()
    world.advance(31)
    run.tick().ok()
    return run.finish_rounds()


def test_cooldown_end_with_half_of_agreeing_holders_attests(
    world: World,
) -> None:
    run = _two_holders(world)
    run.attest(0, HASHES).ok()
    run.attest(2, {2: HASHES[2]}).ok()
    world.advance(29)
    run.tick().refused("NothingToTick")
    # one of two, and two of four: no quorum while others may still attest
    assert run.run.levels_attested == 0
    world.advance(2)
    run.tick().ok()
    state = run.run
    assert (state.state, state.model_source) == (RunState.WAITING_FOR_MEMBERS, ModelSource.PEERS)
    assert (state.levels_attested, state.level_hashes) == (0b111, tuple(HASHES.values()))
    assert state.attested_step == state.step


def test_less_than_half_of_holders_attest_nothing(world: World) -> None:
    run = _two_holders(world)
    run.attest(2, {2: HASHES[2]}).ok()  # one of the four that hold level 2
    world.advance(31)
    run.tick().ok()
    assert (run.run.levels_attested, run.run.model_source) == (0, ModelSource.CHECKPOINT)


def test_cooldown_end_with_disagreeing_holders_needs_quorum(world: World) -> None:
    run = _two_holders(world)
    run.attest(0, HASHES).ok()
    run.attest(1, HASHES | {1: b"x" * 32}).ok()
    run.attest(2, {2: b"y" * 32}).ok()  # two of four against one
    assert (run.run.levels_attested, run.run.level_hashes[0]) == (0b001, HASHES[0])
    world.advance(31)
    run.tick().ok()
    assert (run.run.levels_attested, run.run.level_hashes) == (
        0b001,
        (HASHES[0], UNATTESTED, UNATTESTED),
    )
