"""Test levels that no member of an epoch holds: they return to the durable checkpoint once their
holders had time to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from aftermath.rules.deadlines import HOLDERS_WAIT, next_deadline
from aftermath.rules.state import ModelSource, RunState
from programs.harness import World
from programs.scenario import UNATTESTED, Scenario

OLD = {level: bytes([16 * (level + 1)]) * 32 for level in range(3)}
NEW = {level: bytes([level + 1]) * 32 for level in range(3)}


@pytest.fixture
def ended(world: World) -> Scenario:
    """Return a run after an epoch of tiers 0, 1 and 2.

    Its checkpoint is not recorded, but an older one is.
    """
    run = _trained(world, OLD, attesting=(0, 1, 2))
    assert (run.run.model_source, run.run.level_hashes) == (ModelSource.PEERS, tuple(NEW.values()))
    return run


def _trained(world: World, durable: Mapping[int, bytes], attesting: Sequence[int]) -> Scenario:
    """Return a run after its first epoch, which tiers 0, 1 and 2 finished.

    Some of them attested their levels.
    """
    run = Scenario(world).start(rounds_per_epoch=2, init_min_clients=2)
    record = world.record("Model", "test")
    for level, digest in durable.items():
        record["checkpoint_hashes"][0][level] = digest
    world.store("Model", "test", record)
    for index in range(3):
        run.join(index, tier=index).ok()
    world.advance(6)
    run.tick().ok()
    world.advance(31)
    run.tick().ok()
    run.finish_rounds()
    for index in attesting:
        run.attest(index, {level: NEW[level] for level in range(index, 3)}).ok()
    world.advance(31)
    run.tick().ok()
    return run


def _begin(run: Scenario, *indices: int, wait: int = 36) -> Any:
    for index in indices:
        run.join(index, tier=min(index, 2)).ok()
    run.world.advance(wait)
    run.tick(indices[0])
    assert run.run.state is RunState.WARMUP
    return run.run


def test_level_without_holder_in_epoch_reverts_to_checkpoint(
    ended: Scenario,
) -> None:
    run = _begin(ended, 1, 2)
    assert (run.model_source, run.levels_lost, run.levels_attested) == (
        ModelSource.PEERS,
        0b001,
        0b111,
    )
    assert run.level_hashes == (OLD[0], NEW[1], NEW[2])
    assert run.attested_step == run.step


def test_two_lost_levels_revert_together(ended: Scenario) -> None:
    run = _begin(ended, 2, 3)
    assert (run.levels_lost, run.level_hashes) == (0b011, (OLD[0], OLD[1], NEW[2]))


def test_lost_level_without_durable_hash_is_unattested(ended: Scenario) -> None:
    record = ended.world.record("Model", "test")
    for level in range(3):
        record["checkpoint_hashes"][0][level] = bytes(32)
    ended.world.store("Model", "test", record)
    run = _begin(ended, 1, 2)
    assert (run.levels_lost, run.levels_attested, run.level_hashes[0]) == (0b001, 0b110, bytes(32))


def test_level_of_durable_checkpoint_is_not_lost(ended: Scenario) -> None:
    checkpoint = {"kind": 1, "repo": "team/model", "revision": "r1", "hashes": list(NEW.values())}
    ended.by(0, "checkpoint", checkpoint).ok()
    run = _begin(ended, 1, 2, wait=6)  # without a wait for its holder
    assert (run.levels_lost, run.levels_attested, run.level_hashes) == (
        0,
        0b111,
        tuple(NEW.values()),
    )


def test_present_holder_keeps_its_levels(ended: Scenario) -> None:
    run = _begin(ended, 0, 1, wait=6)
    assert (run.levels_lost, run.level_hashes) == (0, tuple(NEW.values()))


def test_restarted_holder_without_state_is_not_awaited(ended: Scenario) -> None:
    ended.join(0, tier=0, stateless=True).ok()
    run = _begin(ended, 1, 2, wait=6)
    assert (run.levels_lost, run.current.roster, run.level_hashes[0]) == (0b001, 0b111, OLD[0])


def test_absent_holders_of_newer_level_get_warmup_time(ended: Scenario) -> None:
    for index in (1, 2):
        ended.join(index, tier=index).ok()
    deadline = next_deadline(ended.run, ended.members, ended.model)
    assert deadline == ended.run.state_started_at + 35
    ended.world.advance(34)
    ended.tick(1).refused("NothingToTick")
    ended.join(0, tier=0).ok()  # the holder is back, so the epoch begins
    assert (ended.run.state, ended.run.levels_lost) == (RunState.WARMUP, 0)


def test_lost_level_is_reported_for_one_epoch_only(ended: Scenario) -> None:
    _begin(ended, 1, 2)
    ended.world.advance(31)
    ended.tick(1).ok()
    ended.finish_rounds()
    for index in (1, 2):
        ended.attest(index, {level: NEW[level] for level in range(index, 3)}).ok()
    ended.world.advance(31)
    ended.tick(1).ok()
    run = _begin(ended, 0, 1, wait=6)
    assert (run.levels_lost, run.level_hashes[0]) == (0, OLD[0])


def test_trained_but_never_attested_level_is_lost(world: World) -> None:
    """No checkpoint was ever attested, so neither copy of level 0 has a hash.

    The copies differ all the same.
    """
    ended = _trained(world, {}, attesting=(1, 2))
    assert (ended.run.model_source, ended.run.levels_attested, ended.run.level_hashes[0]) == (
        ModelSource.PEERS,
        0b110,
        UNATTESTED,
    )
    for index in (1, 2):
        ended.join(index, tier=index).ok()
    assert next_deadline(ended.run, ended.members, ended.model) == ended.run.state_started_at + 5
    world.advance(4)
    ended.tick(1).refused("NothingToTick")
    world.advance(2)
    ended.tick(1).ok()
    assert (ended.run.state, ended.run.levels_lost) == (RunState.WARMUP, 0b001)


def test_never_held_level_is_not_lost(world: World) -> None:
    run = Scenario(world).start(rounds_per_epoch=2, init_min_clients=2)
    for index in (1, 2):
        run.join(index, tier=index).ok()
    world.advance(6)
    run.tick(1).ok()
    world.advance(31)
    run.tick(1).ok()
    run.finish_rounds()
    for index in (1, 2):
        run.attest(index, {level: NEW[level] for level in range(index, 3)}).ok()
    world.advance(31)
    run.tick(1).ok()
    assert _begin(run, 1, 2, wait=6).levels_lost == 0


def test_lost_level_is_reported_after_abandoned_warm_up(ended: Scenario) -> None:
    assert _begin(ended, 1, 2).levels_lost == 0b001
    ended.by(1, "leave_run").ok()
    assert ended.run.state is RunState.WAITING_FOR_MEMBERS
    assert _begin(ended, 1, 2).levels_lost == 0b001


def _lose(run: Scenario) -> None:
    """Let all members declare that they have no replica, and leave."""
    for index in range(3):
        run.join(index, tier=index, stateless=True).ok()
        run.by(index, "leave_run").ok()


def test_all_lost_levels_revert_to_durable_checkpoint(ended: Scenario) -> None:
    _lose(ended)
    run = _begin(ended, 3, 4, wait=HOLDERS_WAIT)
    assert (run.model_source, run.levels_lost, run.level_hashes) == (
        ModelSource.CHECKPOINT,
        0b111,
        tuple(OLD.values()),
    )


@pytest.mark.parametrize("durable", [{}, OLD])
def test_level_whose_last_holder_left_in_training_is_lost(
    world: World, durable: Mapping[int, bytes]
) -> None:
    run = Scenario(world).start(rounds_per_epoch=4, init_min_clients=2)
    record = world.record("Model", "test")
    for level, digest in durable.items():
        record["checkpoint_hashes"][0][level] = digest
        record["checkpoint_step"] = 1
    world.store("Model", "test", record)
    run.owner("set_paused", True).ok()
    run.owner("set_paused", False).ok()
    for index in range(3):
        run.join(index, tier=index).ok()
    world.advance(6)
    run.tick().ok()
    world.advance(31)
    run.tick().ok()
    for _ in range(3):
        run.witness_round()
    run.by(0, "leave_run").ok()
    run.finish_rounds()
    for index in (1, 2):
        run.attest(index, {level: NEW[level] for level in range(index, 3)}).ok()
    assert run.run.levels_attested == 0b100  # one of two holders of level 1 left
    world.advance(31)
    run.tick(1).ok()
    assert (run.run.levels_lost, run.run.levels_attested) == (0b001, 0b111 if durable else 0b110)
    state = _begin(run, 1, 2)
    assert (state.levels_lost, state.level_hashes[0]) == (0b001, durable.get(0, bytes(32)))


def test_level_of_returning_holder_without_replica_stays_lost(
    world: World,
) -> None:
    ended = _trained(world, {}, attesting=(1, 2))
    ended.join(0, tier=0, stateless=True).ok()
    assert _begin(ended, 1, 2).levels_lost == 0b001


def test_holders_wait_starts_when_enough_members_are_back(ended: Scenario) -> None:
    ended.world.advance(1000)
    ended.join(1, tier=1).ok()
    ended.join(2, tier=2).ok()
    ended.join(0, tier=0).ok()
    ended.world.advance(6)
    ended.tick().ok()
    assert (ended.run.state, ended.run.current.roster, ended.run.levels_lost) == (
        RunState.WARMUP,
        0b111,
        0,
    )
