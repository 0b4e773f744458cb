"""Files that checkpoints leave on the disk: needed ones stay, and all others are removed."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from aftermath.member import checkpoint_writer
from aftermath.model.save_checkpoint import Saved
from aftermath.rules.state import CheckpointKind, RunState
from aftermath.sim.simulation import SimulatedRun, play
from member.repository import Repository, raising
from member.short_runs import ALONE


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "hub")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory that replaces the system's temporary one."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def _in(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize("fails", [pytest.param(False, marks=pytest.mark.slow), True])
def test_archive_without_directory_leaves_no_files(
    tmp_path: Path, repository: Repository, temporary: Path, fails: bool
) -> None:
    """A killed process leaves none either. After failed uploads, a member keeps the last model
    until one works.
    """
    dead = subprocess.Popen(["true"])
    dead.wait()
    (temporary / f"aftermath-checkpoint-{dead.pid}-x" / "sim-step1").mkdir(parents=True)
    if fails:
        repository.before = lambda: (
            raising(RuntimeError("no"))() if len(repository.sources) < 3 else None
        )

    async def scenario(sim: SimulatedRun) -> None:
        sim.hub = repository.hub
        sim.saves_checkpoints = False
        sim.add(0)
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, **ALONE)
    sim.check()
    assert sim.model.checkpoint_step == 7
    assert [source.parent.parent for source in repository.sources] == [temporary] * (
        3 if fails else 2
    )
    assert not _in(temporary)


def test_stopped_member_abandons_running_and_waiting_upload(
    tmp_path: Path, repository: Repository, temporary: Path
) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.hub = repository.hub
        sim.saves_checkpoints = False
        sim.upload_seconds = 500.0
        sim_member = sim.add(0)
        await sim.until(lambda run: run.epoch == 2 and run.state is RunState.ROUND_TRAIN)
        assert len(_in(temporary)) == 2
        before = sim.now
        await sim.stop(sim_member)
        assert sim.now - before < 2
        assert not _in(temporary)

    play(tmp_path / "run", scenario, **ALONE | {"total_steps": 12})
    assert not repository.sources


def test_save_with_unexpected_error_is_a_warning(
    tmp_path: Path, repository: Repository, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoint_writer.save
    fails = {3: 100, 6: 1}

    def failing(*arguments: Any, step: int, **more: Any) -> Saved:
        fails[step] -= 1
        if fails[step] >= 0:
            raise RuntimeError("CUDA error: out of memory")
        return save(*arguments, step=step, **more)

    monkeypatch.setattr(checkpoint_writer, "save", failing)

    async def scenario(sim: SimulatedRun) -> None:
        sim.hub = repository.hub
        sim.saves_checkpoints = False
        sim.add(0)
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, **ALONE)
    sim.check()
    messages = [event["message"] for event in sim.sim_members[0].saw("warning")]
    failed = [
        f"no checkpoint of step {step} was saved: CUDA error: out of memory" for step in (3, 6)
    ]
    assert messages == failed
    assert sim.model.checkpoint_step == 7
    assert not _in(temporary)


@pytest.mark.slow
def test_old_steps_are_deleted_except_the_uploading_one(
    tmp_path: Path, repository: Repository
) -> None:
    """Step 3 is uploading all the time and 18 waits. The chain has recorded the four newest
    directories.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim.hub = repository.hub
        sim.upload_seconds = 500.0
        sim.add(0)
        await sim.until(lambda run: run.epoch == 6 and run.state is RunState.ROUND_TRAIN)
        recorded = [Path(one.checkpoint.repo).name for one in sim.model.recorded]
        assert recorded == ["sim-step18", "sim-step15", "sim-step12", "sim-step9"]
        assert _in(sim.place / "kept" / "m0") == sorted(["sim-step3", *recorded])

    play(tmp_path / "run", scenario, **ALONE | {"total_steps": 24})


@pytest.mark.parametrize(
    ("keep_steps", "newest"), [(1, (12, 15)), pytest.param(3, (12, 15, 9), marks=pytest.mark.slow)]
)
def test_old_steps_are_deleted_except_the_recorded_one(
    tmp_path: Path, keep_steps: int, newest: tuple[int, ...]
) -> None:
    """From step 6 on, no checkpoint can be recorded. The two newest attested ones stay."""

    async def scenario(sim: SimulatedRun) -> None:
        sim.keep_steps = keep_steps
        sim.add(0)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        recorded = sim.model.checkpoint
        assert recorded.kind is CheckpointKind.LOCAL
        assert recorded.repo == str(sim.place / "kept" / "m0" / "sim-step3")
        chain = sim.sim_members[0].chain
        assert chain is not None

        async def checkpoint(*_: object) -> None:
            raise checkpoint_writer.Refused("NotAllowedToCheckpoint", "no")

        chain.checkpoint = checkpoint  # type: ignore[method-assign]
        await sim.until(lambda run: run.epoch == 5 and run.state is RunState.ROUND_TRAIN)
        assert _in(sim.place / "kept" / "m0") == sorted(f"sim-step{step}" for step in (3, *newest))
        assert sim.model.checkpoint == recorded

    play(tmp_path / "run", scenario, **ALONE | {"total_steps": 24})


async def _epoch_from_the_start(sim: SimulatedRun) -> None:
    """Let the owner pause and set the next step to 1. Return after the next epoch."""
    sim.pause(True)
    run = await sim.until(lambda run: run.state is RunState.PAUSED)
    progress = {"epoch": run.epoch, "step": 1, "data_index": 0}
    sim.chain.send([sim.ix.update("sim", progress=progress)], sim.owner)
    sim.pause(False)
    await sim.until(lambda now: now.epoch == run.epoch + 1 and now.state is RunState.ROUND_TRAIN)


@pytest.mark.slow
def test_step_of_rewound_past_is_deleted(tmp_path: Path) -> None:
    """Steps 3 and 6 are saved twice, the second time with what the model has learnt meanwhile."""

    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0)
        place = sim.place / "kept" / "m0"
        await sim.until(lambda run: run.epoch == 2 and run.state is RunState.ROUND_TRAIN)
        past = {name: (place / name / "model.safetensors").read_bytes() for name in _in(place)}
        assert sorted(past) == ["sim-step3", "sim-step6"]
        await _epoch_from_the_start(sim)
        assert sim.model.checkpoint.repo == str(place / "sim-step3")
        assert (place / "sim-step3" / "model.safetensors").read_bytes() != past["sim-step3"]
        aside = place / "sim-step3.replaced-1"
        (message,) = [
            event["message"]
            for event in sim.sim_members[0].saw("warning")
            if "another model" in event["message"]
        ]
        assert f"{place / 'sim-step3'} held another model of step 3" in message
        assert f": it was moved to {aside}" in message, "it does not guess why the run went back"
        assert _in(place) == ["sim-step3", "sim-step6", "sim-step7"], (
            "of four that one was the first to go"
        )
        await sim.until_finished()
        assert sim.model.checkpoint.repo == str(place / "sim-step12")

    play(tmp_path / "run", scenario, **ALONE | {"total_steps": 12})


@pytest.mark.slow
def test_rewound_step_named_by_chain_is_kept(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0)
        place = sim.place / "kept" / "m0"
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        recorded = sim.model.checkpoint
        past = (place / "sim-step3" / "model.safetensors").read_bytes()
        assert recorded.repo == str(place / "sim-step3")
        chain = sim.sim_members[0].chain
        assert chain is not None

        async def checkpoint(*_: object) -> None:
            raise checkpoint_writer.Refused("NotAllowedToCheckpoint", "no")

        chain.checkpoint = checkpoint  # type: ignore[method-assign]
        await _epoch_from_the_start(sim)
        messages = [event["message"] for event in sim.sim_members[0].saw("warning")]
        assert sum("which holds another model" in message for message in messages) == 1
        assert (place / "sim-step3" / "model.safetensors").read_bytes() == past
        assert sim.model.checkpoint == recorded
        assert _in(place) == ["sim-step3", "sim-step4"], "the pause ended the other epoch early"

    play(tmp_path / "run", scenario, **ALONE | {"total_steps": 12})
