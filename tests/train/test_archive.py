"""Checkpoints on the Hub: uploading takes longer than a cooldown, and costs the member that does it nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from aftermath.model.checkpoint import load
from aftermath.model.documents import CheckpointError
from aftermath.model.segments import level_hash
from aftermath.run.state import CheckpointKind, RunState
from aftermath.train.archive import Hub
from train.simulated import Simulation, play


class Repository:
    """A place that takes uploads; `refuses` makes it fail."""

    def __init__(self, place: Path) -> None:
        self.place, self.refuses, self.sources = place, False, list[Path]()
        place.mkdir()

    def upload(self, directory: Path, message: str) -> str:
        if self.refuses:
            raise CheckpointError("the Hub answered 403", "Set HF_TOKEN.")
        self.sources.append(directory)
        commit = message.replace(" ", "-")
        shutil.copytree(directory, self.place / commit)
        return commit

    @property
    def hub(self) -> Hub:
        return Hub("team/model", self.upload)


def test_an_upload_goes_on_beside_the_next_epoch(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "hub")

    async def story(sim: Simulation) -> None:
        sim.hub = repository.hub
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        assert sim.model.checkpoint_step == 0
        await sim.until(lambda run: sim.model.checkpoint_step == 7 and run.state is RunState.ROUND_TRAIN)
        assert (sim.model.checkpoint.kind, sim.model.checkpoint.revision) == (CheckpointKind.HUB, "sim-step-7")
        await sim.until_finished()

    sim = play(tmp_path / "run", story)
    assert sim.check() == 42
    assert len(sim.players[0].saw("applied")) == 12
    assert (sim.model.checkpoint_step, sim.model.checkpoint.revision) == (13, "sim-step-13")  # although the run is over
    weights = load(repository.place / "sim-step-13", 0)
    assert [level_hash(weights, sim.schema, level) for level in range(3)] == list(sim.run.level_hashes)


def test_without_a_directory_nothing_stays_on_the_disk(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "hub")

    async def story(sim: Simulation) -> None:
        sim.hub, sim.keeps = repository.hub, False
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path / "run", story)
    assert sim.model.checkpoint_step == 13
    assert len(repository.sources) == 2
    assert not any(source.parent.exists() for source in repository.sources)


def test_a_hub_that_refuses_costs_only_the_checkpoint(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "hub")
    repository.refuses = True

    async def story(sim: Simulation) -> None:
        sim.hub = repository.hub
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path / "run", story)
    assert sim.check() == 42
    assert sim.model.checkpoint_step == 0
    told = [event["message"] for event in sim.players[0].saw("warning")]
    assert told == [f"step {step} was not uploaded: the Hub answered 403\nSet HF_TOKEN." for step in (7, 13)]
    assert sorted(path.name for path in (sim.place / "kept" / "m0").iterdir()) == ["sim-step13", "sim-step7"]


def test_stopping_gives_up_the_upload_under_way(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "hub")

    async def story(sim: Simulation) -> None:
        sim.hub = repository.hub
        players = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        before = sim.now
        await sim.stop(players[0])
        assert sim.now - before < 2

    play(tmp_path / "run", story)
    assert not repository.sources
