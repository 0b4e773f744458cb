"""Test the end of an epoch: level hashes, checkpoints, points, pauses, and the next epoch's model
source.
"""

from typing import Any

import pytest

from aftermath.rules import committee
from aftermath.rules.deadlines import next_deadline
from aftermath.rules.state import CheckpointKind, ModelSource, RunState
from programs.harness import World
from programs.scenario import UNATTESTED, Scenario, model_params

HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
NAMED: dict[str, Any] = {
    "kind": 1,
    "repo": "team/model",
    "revision": "r1",
    "hashes": list(HASHES.values()),
}


@pytest.fixture
def cool(world: World) -> Scenario:
    """Return three members of tier 0 in cooldown after two rounds."""
    run = Scenario(world).start(rounds_per_epoch=2)
    run.owner("set_future_epoch_rates", 301, 0).ok()
    return run.train([0, 1, 2]).finish_rounds()


def test_quorum_attests_each_level(cool: Scenario) -> None:
    assert (cool.run.state, cool.run.levels_attested, cool.run.step) == (RunState.COOLDOWN, 0, 3)
    cool.attest(0, HASHES).ok()
    assert cool.run.levels_attested == 0
    cool.attest(1, {0: b"x" * 32, 1: HASHES[1], 2: HASHES[2]}).ok()
    run = cool.run
    assert (run.levels_attested, run.attested_step) == (0b110, 3)
    assert run.level_hashes == (UNATTESTED, HASHES[1], HASHES[2])
    cool.attest(2, HASHES).ok()
    assert (cool.run.levels_attested, cool.run.level_hashes) == (0b111, tuple(HASHES.values()))


def test_invalid_attestations_are_refused(cool: Scenario) -> None:
    cool.by(0, "attest", 0, 0, []).refused("HashesInvalid")
    cool.by(0, "attest", 0, 0b11, [HASHES[0]]).refused("HashesInvalid")
    cool.by(0, "attest", 0, 0b1, [bytes(32)]).refused("HashesInvalid")
    cool.by(0, "attest", 0, 0b1, [b"\xff" * 32]).refused("HashesInvalid")
    cool.by(0, "attest", 0, 0b1000, [HASHES[0]]).refused("NotElected")  # there is no such level
    cool.by(0, "attest", 1, 0b1, [HASHES[0]]).refused("SeatMismatch")
    cool.attest(0, HASHES).ok()
    cool.attest(0, HASHES).refused("DuplicateWitness")
    cool.by(1, "leave_run").ok()
    cool.attest(1, HASHES).refused("SeatMismatch")
    cool.world.advance(31)
    cool.tick(2).ok()
    cool.by(0, "attest", 0, 1, [HASHES[0]]).refused("WrongState")


def test_tier_attests_levels_it_holds(world: World) -> None:
    run = Scenario(world).start(rounds_per_epoch=1)
    for index, tier in enumerate((1, 2, 2)):
        run.join(index, tier=tier).ok()
    world.advance(6)
    run.tick().ok()
    world.advance(31)
    run.tick().ok()
    record = world.record("Run", "test")
    record["level_hashes"][0][0] = b"0" * 32
    record["levels_attested"] = 0b011
    world.store("Run", "test", record)
    run.finish_rounds()
    # nobody holds level 0: what is known of it stays
    assert (run.run.levels_attested, run.run.level_hashes[0], run.run.level_hashes[1]) == (
        0b001,
        b"0" * 32,
        UNATTESTED,
    )
    members = run.members
    assert [committee.levels_to_attest(run.run, members, seat) for seat in range(3)] == [
        (1, 2),
        (2,),
        (2,),
    ]
    run.attest(1, {1: HASHES[1]}).refused("NotElected")
    run.attest(0, HASHES).ok()  # the hash of level 0 is not counted
    assert (run.run.levels_attested, run.run.level_hashes[0]) == (0b011, b"0" * 32)
    run.attest(1, {2: HASHES[2]}).ok()
    assert run.run.levels_attested == 0b111


def test_checkpoint_with_attested_hashes_ends_cooldown(cool: Scenario) -> None:
    cool.by(0, "checkpoint", NAMED).refused("CheckpointMismatch")
    for index in range(3):
        cool.attest(index, HASHES).ok()
    cool.tick().refused("NothingToTick")
    wrong = [HASHES[0], HASHES[2], HASHES[1]]
    cool.by(0, "checkpoint", NAMED | {"hashes": wrong}).refused("CheckpointMismatch")
    cool.by(0, "checkpoint", NAMED | {"hashes": wrong[:2]}).refused("CheckpointMismatch")
    cool.by(7, "checkpoint", NAMED).refused("NotAllowedToCheckpoint")
    cool.by(0, "checkpoint", NAMED | {"kind": 0}).refused("UnknownCheckpoint")
    cool.by(0, "checkpoint", NAMED | {"repo": ""}).refused("RepoMissing")
    cool.by(0, "checkpoint", NAMED | {"repo": "r" * 193}).refused("RepoTooLong")
    cool.by(0, "checkpoint", NAMED | {"revision": "r" * 65}).refused("RevisionTooLong")
    cool.by(0, "checkpoint", NAMED).ok()
    run = cool.run
    model = cool.model
    assert (run.state, run.epoch, run.model_source) == (
        RunState.WAITING_FOR_MEMBERS,
        1,
        ModelSource.PEERS,
    )
    assert (model.checkpoint.kind, model.checkpoint.repo, model.checkpoint.revision) == (
        CheckpointKind.HUB,
        "team/model",
        "r1",
    )
    assert (model.checkpoint_step, model.checkpoint_hashes) == (3, tuple(HASHES.values()))
    cool.by(0, "checkpoint", NAMED).refused("CheckpointNotNewer")


def test_checkpoint_after_epoch_is_accepted(cool: Scenario) -> None:
    for index in range(3):
        cool.attest(index, HASHES).ok()
    cool.world.advance(31)
    cool.tick().ok()
    cool.by(7, "checkpoint", NAMED).refused("NotAllowedToCheckpoint")
    cool.owner("set_paused", True).ok()
    keys = {"user": cool.authority.pubkey()}
    cool.world.send(
        cool.instruction("checkpoint", NAMED, accounts=keys), signers=[cool.authority]
    ).ok()
    assert cool.model.checkpoint_step == 3


def test_expired_cooldown_ends_only_by_tick(cool: Scenario) -> None:
    """After an outage longer than the cooldown, the first member to return does not cut off the
    others.
    """
    cool.world.advance(300)
    cool.join(5).ok()
    for index in range(3):
        assert cool.run.state is RunState.COOLDOWN
        cool.attest(index, HASHES).ok()
    cool.by(5, "leave_run").ok()
    assert (cool.run.state, cool.run.levels_attested) == (RunState.COOLDOWN, 0b111)
    cool.tick().ok()
    assert (cool.run.state, cool.run.model_source) == (
        RunState.WAITING_FOR_MEMBERS,
        ModelSource.PEERS,
    )


def test_late_checkpoint_still_ends_cooldown(cool: Scenario) -> None:
    cool.world.advance(300)
    for index in range(3):
        cool.attest(index, HASHES).ok()
    cool.by(0, "checkpoint", NAMED).ok()
    assert (cool.run.state, cool.model.checkpoint_step) == (RunState.WAITING_FOR_MEMBERS, 3)


def test_new_run_has_no_checkpoint_to_record(world: World) -> None:
    run = Scenario(world)
    run.create().ok()
    run.by(0, "checkpoint", NAMED).refused("WrongState")


def test_only_finishers_record_checkpoint_of_epoch(cool: Scenario) -> None:
    """Refused are a member that has joined since, and one that declared the whole model only
    afterwards.
    """
    for index in range(3):
        cool.attest(index, HASHES).ok()
    cool.world.advance(31)
    cool.tick().ok()
    cool.join(2, tier=1).ok()
    cool.by(2, "checkpoint", NAMED).refused("NotAllowedToCheckpoint")
    cool.join(2, tier=0).ok()
    cool.by(2, "checkpoint", NAMED).refused("NotAllowedToCheckpoint")
    cool.warm_up([0, 1, 5])
    cool.by(5, "checkpoint", NAMED).refused("NotAllowedToCheckpoint")
    cool.by(0, "checkpoint", NAMED).ok()


def test_member_may_not_replace_hub_checkpoint_by_directory(cool: Scenario) -> None:
    for index in range(3):
        cool.attest(index, HASHES).ok()
    record = cool.world.record("Model", "test")
    record["checkpoint"]["kind"] = CheckpointKind.HUB
    cool.world.store("Model", "test", record)
    cool.by(0, "checkpoint", NAMED | {"kind": 2}).refused("CheckpointPlaceRefused")
    cool.by(0, "checkpoint", NAMED | {"kind": 3, "repo": ""}).refused("CheckpointPlaceRefused")
    cool.by(0, "checkpoint", NAMED).ok()
    keys = {"user": cool.authority.pubkey()}
    for kind, repo in ((1, "team/better"), (2, "/srv/model")):
        better = NAMED | {"kind": kind, "repo": repo}
        cool.world.send(
            cool.instruction("checkpoint", better, accounts=keys), signers=[cool.authority]
        ).ok()
        assert (cool.model.checkpoint.repo, cool.model.checkpoint_step) == (repo, 3)


def test_vote_and_leave_makes_no_room_for_another(world: World) -> None:
    """The committee is fixed when the cooldown starts.

    Otherwise a minority could vote, leave and shrink the quorum.
    """
    run = Scenario(world).start(rounds_per_epoch=1, min_clients=1, init_min_clients=9)
    run.train(range(9)).finish_rounds()
    evil = dict.fromkeys(range(3), b"e" * 32)
    for index in range(4):
        run.attest(index, evil).ok()
        if index < 3:
            run.by(index, "leave_run").ok()
    assert run.run.levels_attested == 0
    assert len(committee.cooldown_electees(run.run, run.members, 0)) == 9
    for index in range(4, 9):
        run.attest(index, HASHES).ok()
    assert run.run.levels_attested == 0  # five of nine; the quorum is six


def test_failed_cooldown_keeps_durable_hashes(cool: Scenario) -> None:
    run = _next_epoch(cool, [0, 1, 2])
    run.by(0, "checkpoint", NAMED).ok()
    run.owner("set_paused", True).ok()
    run.update(use_durable=True).ok()
    run.owner("set_paused", False).ok()
    run.train([0, 1, 2]).finish_rounds()
    run.world.advance(31)
    run.tick().ok()
    state = run.run
    assert (state.model_source, state.levels_attested) == (ModelSource.CHECKPOINT, 0b111)
    assert state.level_hashes == tuple(HASHES.values())


def test_replaced_checkpoint_loses_its_hashes(cool: Scenario) -> None:
    run = _next_epoch(cool, [0, 1, 2])
    run.by(0, "checkpoint", NAMED).ok()
    run.owner("set_paused", True).ok()
    run.update(use_durable=True).ok()
    assert run.run.levels_attested == 0b111
    other = model_params()
    other["checkpoint"] = other["checkpoint"] | {"repo": "owner/other"}
    run.update(model=other).ok()
    assert (run.run.levels_attested, run.run.attested_step) == (0, 0)


def test_points_are_split_among_members_that_stayed(cool: Scenario) -> None:
    cool.by(2, "leave_run").ok()
    cool.world.advance(31)
    cool.tick().ok()
    assert [cool.members.seats[index].points for index in range(3)] == [150, 150, 0]
    assert cool.run.finishers == 0b011
    assert cool.run.model_source is ModelSource.CHECKPOINT  # no level was attested


def test_pause_in_training_pays_and_cools_down_first(run: Scenario) -> None:
    run.owner("set_future_epoch_rates", 300, 0).ok()
    run.train([0, 1, 2])
    run.join(0).ok()
    run.owner("set_paused", True).ok()
    run.owner("set_paused", False).ok()
    assert not run.run.pending_pause  # the request is withdrawn
    run.owner("set_paused", True).ok()
    run.configure().refused("NotHalted")
    run.finish_rounds()
    assert (run.run.current.height, run.run.exit_reason.name) == (1, "PAUSE")
    run.world.advance(31)
    run.tick().ok()
    state = run.run
    assert (state.state, state.cold_start, state.pending_pause, state.epoch) == (
        RunState.PAUSED,
        True,
        False,
        1,
    )
    assert [seat.points for seat in run.members.seats[:3]] == [100] * 3
    assert run.members.pending == 0
    run.tick().refused("NothingToTick")
    run.owner("set_paused", False).ok()
    run.train([0, 1, 2])
    assert run.run.cold_start
    run.finish_rounds()
    run.world.advance(31)
    run.tick().ok()
    assert not run.run.cold_start


def test_last_step_finishes_run(world: World) -> None:
    run = Scenario(world).start(total_steps=2)
    run.train([0, 1, 2]).finish_rounds()
    assert run.run.step == 3
    world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.FINISHED
    run.join(0).refused("RunHalted")
    run.tick().refused("NothingToTick")
    run.owner("close_run").ok()


def _next_epoch(run: Scenario, indices: list[int]) -> Scenario:
    for index in range(3):
        run.attest(index, HASHES).ok()
    run.world.advance(31)
    run.tick().ok()
    return run.warm_up(indices)


def test_returning_finisher_keeps_peers_as_model_source(cool: Scenario) -> None:
    run = _next_epoch(cool, [2, 3, 4]).run
    assert (run.model_source, run.levels_attested) == (ModelSource.PEERS, 0b111)


def test_epoch_without_finisher_starts_from_durable_checkpoint(cool: Scenario) -> None:
    for index in range(3):
        cool.attest(index, HASHES).ok()
    cool.world.advance(31)
    cool.tick().ok()
    for index in (3, 4, 5):
        cool.join(index).ok()
    cool.world.advance(36)
    cool.tick().refused("NothingToTick")  # a finisher must come back first
    assert next_deadline(cool.run, cool.members, cool.model) is None
    for index in range(3):
        cool.join(index, stateless=True).ok()  # they have lost their replicas
    cool.world.advance(6)
    if cool.run.state is RunState.WAITING_FOR_MEMBERS:
        cool.tick().ok()
    run = cool.run
    assert (run.model_source, run.levels_attested, run.attested_step) == (
        ModelSource.CHECKPOINT,
        0,
        0,
    )


def test_cooldown_of_epoch_without_step_ends_at_once(
    cool: Scenario,
) -> None:
    """The previous epoch's checkpoint already contains the model."""
    for index in range(3):
        cool.attest(index, HASHES).ok()
    assert next_deadline(cool.run, cool.members, cool.model) == cool.run.state_started_at + 30
    cool.by(0, "checkpoint", NAMED).ok()
    assert cool.run.state is RunState.WAITING_FOR_MEMBERS
    cool.train([0, 1, 2])
    while cool.run.state.training:
        cool.world.advance(21)
        cool.tick().ok()
    assert cool.run.step == cool.run.start_step
    deadline = next_deadline(cool.run, cool.members, cool.model)
    assert deadline == cool.run.state_started_at + 1
    cool.world.advance(1)
    cool.tick().ok()
    assert cool.run.state is RunState.WAITING_FOR_MEMBERS


def test_restarted_finisher_is_not_a_finisher(cool: Scenario) -> None:
    cool.join(2, stateless=True).ok()
    run = _next_epoch_of_two(cool)
    assert run.finishers == 0b011


def _next_epoch_of_two(run: Scenario) -> Any:
    for index in (0, 1):
        run.attest(index, HASHES).ok()
    run.world.advance(31)
    run.tick().ok()
    return run.run


def test_owner_may_not_replace_model_of_running_epoch(cool: Scenario) -> None:
    cool.update(model=model_params()).refused("NotHalted")
