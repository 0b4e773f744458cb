"""Checkpoints on the Hub: uploading takes longer than a cooldown, and costs the member that does it nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.member.archive import LONGEST_UPLOAD
from aftermath.model.checkpoint import load
from aftermath.model.documents import CheckpointError
from aftermath.model.segments import level_hash
from aftermath.rules.run import steps_before
from aftermath.rules.state import CheckpointKind, RunState
from aftermath.sim.player import Player
from aftermath.sim.simulation import Simulation, play
from member.repository import Repository, raising


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "hub")


def _start(sim: Simulation, repository: Repository) -> list[Player]:
    """Three members, the first of which uploads."""
    sim.hub = repository.hub
    return [sim.add(tier) for tier in (0, 1, 2)]


def _warned(player: Player) -> list[str]:
    return [event["message"] for event in player.saw("warning")]


def test_an_upload_goes_on_beside_the_next_epoch(tmp_path: Path, repository: Repository) -> None:
    async def story(sim: Simulation) -> None:
        _start(sim, repository)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        assert sim.model.checkpoint_step == 0
        await sim.until(lambda run: sim.model.checkpoint_step == 7 and run.state is RunState.ROUND_TRAIN)
        assert (sim.model.checkpoint.kind, sim.model.checkpoint.revision) == (CheckpointKind.HUB, "sim-step-6")
        await sim.until_finished()

    sim = play(tmp_path / "run", story)
    assert sim.check() == 42
    assert len(sim.players[0].saw("applied")) == 12
    assert not _warned(sim.players[0])
    assert (sim.model.checkpoint_step, sim.model.checkpoint.revision) == (13, "sim-step-12")  # although the run is over
    weights = load(repository.place / "sim-step-12", 0)
    assert [level_hash(weights, sim.schema.state, level) for level in range(3)] == list(sim.run.level_hashes)


def test_of_those_that_wait_for_a_long_upload_the_newest_is_uploaded_next(
    tmp_path: Path, repository: Repository
) -> None:
    """Steps 7, 13, 19 and 25 come up; the upload of 7 outlasts the next two epochs."""

    async def story(sim: Simulation) -> None:
        sim.upload_seconds = 80.0
        _start(sim, repository)
        await sim.until(lambda run: run.step == 19 and run.state is RunState.WAITING_FOR_MEMBERS)
        assert len(repository.sources) == 0
        assert sim.model.checkpoint_step == 19  # its directory: an upload of it would be too late
        await sim.until(lambda run: run.state is RunState.FINISHED)
        await asyncio.sleep(300)

    sim = play(tmp_path / "run", story, total_steps=24)
    assert sim.check() == 84
    assert repository.commits == ["sim-step-18", "sim-step-24", "sim-step-6"]
    assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step24")
    told = _warned(sim.players[0])
    assert told[0] == "step 12 is not uploaded: an earlier upload took so long that it is outdated"
    assert told[1] == "the chain does not name team/model@sim-step-6 of step 6: a later epoch has ended meanwhile"
    assert len(told) == 4


def test_an_upload_that_never_ends_is_given_up_and_its_directory_named(tmp_path: Path, repository: Repository) -> None:
    async def story(sim: Simulation) -> None:
        sim.upload_seconds = 10 * LONGEST_UPLOAD
        _start(sim, repository)
        await sim.until(lambda run: run.state is RunState.FINISHED)
        assert sim.players[0].alive
        await asyncio.sleep(2 * LONGEST_UPLOAD)
        assert not sim.players[0].alive

    sim = play(tmp_path / "run", story)
    assert sim.check() == 42
    assert not repository.sources
    assert _warned(sim.players[0])[0] == "step 6 was not uploaded: it took longer than 3600 s and is given up"
    assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step12")


@pytest.mark.parametrize("error", [CheckpointError("the Hub answered 403", "Set HF_TOKEN."), RuntimeError("a bug")])
def test_a_hub_that_refuses_costs_only_the_upload(tmp_path: Path, repository: Repository, error: Exception) -> None:
    repository.before = raising(error)

    async def story(sim: Simulation) -> None:
        _start(sim, repository)
        await sim.until_finished()

    sim = play(tmp_path / "run", story)
    assert sim.check() == 42
    assert _warned(sim.players[0]) == [f"step {step} was not uploaded: {error}" for step in (6, 12)]
    assert sorted(path.name for path in (sim.place / "kept" / "m0").iterdir()) == ["sim-step12", "sim-step6"]
    assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step12")


def test_an_upload_that_loses_to_a_directory_is_a_warning(tmp_path: Path, repository: Repository) -> None:
    """The directory is there first, and stays where its member's turn is before the other's."""

    async def story(sim: Simulation) -> None:
        _start(sim, repository)
        sim.hub = None
        sim.add(0)
        await sim.until_finished()

    sim = play(tmp_path / "run", story, init_min_clients=4, total_steps=18)
    assert sim.check() > 0
    other = sim.place / "kept" / "m3"
    chosen = {steps_before(one.step): one.checkpoint for one in reversed(sim.model.recorded)}
    assert _warned(sim.players[0]) == [
        f"the chain does not name team/model@sim-step-{step} of step {step}: "
        f"it names {other / f'sim-step{step}'} of step {step} already"
        for step in (6, 12, 18)
        if chosen[step].kind is CheckpointKind.LOCAL
    ]
    assert CheckpointKind.LOCAL in {one.kind for one in chosen.values()}  # so somebody was told
    assert not _warned(sim.players[3])


def test_a_directory_does_not_replace_what_others_can_reach(tmp_path: Path, repository: Repository) -> None:
    """Once the run's checkpoint is on the Hub, a member that only writes to a directory leaves it there."""

    async def story(sim: Simulation) -> None:
        players = _start(sim, repository)
        await sim.until(lambda run: sim.model.checkpoint_step == 7 and run.state is RunState.ROUND_TRAIN)
        sim.hub = None
        sim.add(0)
        await sim.until(lambda run: run.epoch == 3 and run.state is RunState.ROUND_TRAIN)  # it has shown its level 0
        await sim.kill(players[0])
        await sim.until_finished()

    sim = play(tmp_path / "run", story, total_steps=30)
    assert sim.check(dropped=[sim.players[0]]) > 0
    late = sim.players[3]
    assert [event["step"] for event in late.saw("checkpoint")][-1] == 30
    assert (sim.model.checkpoint.kind, sim.model.checkpoint_step) == (CheckpointKind.HUB, 13)


def test_a_lost_reply_is_no_reason_to_warn(tmp_path: Path, repository: Repository) -> None:
    async def story(sim: Simulation) -> None:
        chain = _start(sim, repository)[0].chain
        assert chain is not None
        repository.before = lambda: setattr(chain, "replies_lost", 1)
        await sim.until_finished()

    sim = play(tmp_path / "run", story)
    assert sim.check() == 42
    assert sim.model.checkpoint.revision == "sim-step-12"
    assert not _warned(sim.players[0])


def test_whatever_goes_wrong_in_the_background_is_a_warning(tmp_path: Path, repository: Repository) -> None:
    async def story(sim: Simulation) -> None:
        chain = _start(sim, repository)[0].chain
        assert chain is not None

        async def checkpoint(*_: object) -> None:
            raise LookupError("nobody expected this")

        chain.checkpoint = checkpoint  # type: ignore[method-assign]
        await sim.until_finished()

    sim = play(tmp_path / "run", story)
    assert sim.check() == 42
    assert _warned(sim.players[0]) == [
        f"the chain was not told of the checkpoint of step {step}: nobody expected this" for step in (6, 12)
    ]
