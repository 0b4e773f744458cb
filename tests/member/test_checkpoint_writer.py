"""Uploads of checkpoints to the Hub outlast a cooldown and do not delay their member."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.chain.refusals import refusal
from aftermath.member import checkpoint_writer
from aftermath.member.checkpoint_writer import Hub
from aftermath.model.checkpoint import load
from aftermath.model.json_documents import CheckpointError
from aftermath.model.segments import level_hash
from aftermath.rules.run import steps_before
from aftermath.rules.state import CheckpointKind, RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.repository import Repository
from member.short_runs import ALONE, SHORT
from rules.builders import run


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "hub")


def _start(
    sim: SimulatedRun, repository: Repository, *tiers: int, seconds: float = 20.0
) -> list[SimMember]:
    """Add a tier-0 member and others of these tiers. Each upload takes `seconds`, more than a
    cooldown.
    """
    sim.hub = repository.hub
    sim.upload_seconds = seconds
    return [sim.add(tier) for tier in (0, *tiers)]


def _warned(sim_member: SimMember) -> list[str]:
    return [event["message"] for event in sim_member.saw("warning")]


@pytest.mark.slow
def test_upload_continues_during_next_epoch(tmp_path: Path, repository: Repository) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        _start(sim, repository, 1, 2)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        assert sim.model.checkpoint_step == 0
        await sim.until(
            lambda run: sim.model.checkpoint_step == 4 and run.state is RunState.ROUND_TRAIN
        )
        assert (sim.model.checkpoint.kind, sim.model.checkpoint.revision) == (
            CheckpointKind.HUB,
            "sim-step-3",
        )
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, **SHORT)
    assert sim.check() == 24
    assert len(sim.sim_members[0].saw("applied")) == 6
    assert not _warned(sim.sim_members[0])
    # although the run has finished
    assert (sim.model.checkpoint_step, sim.model.checkpoint.revision) == (7, "sim-step-6")
    weights = load(repository.place / "sim-step-6", 0)
    assert [level_hash(weights, sim.schema.state, level) for level in range(3)] == list(
        sim.run.level_hashes
    )


def test_newest_waiting_checkpoint_is_uploaded_next(tmp_path: Path, repository: Repository) -> None:
    """Steps 3, 6, 9 and 12 are saved. The upload of step 3 outlasts the next two epochs."""

    async def scenario(sim: SimulatedRun) -> None:
        _start(sim, repository, seconds=60.0)
        await sim.until(lambda run: run.step == 10 and run.state is RunState.WAITING_FOR_MEMBERS)
        assert len(repository.sources) == 0
        assert sim.model.checkpoint_step == 10  # of the directory; an upload would be too late
        await sim.until(lambda run: run.state is RunState.FINISHED)
        await asyncio.sleep(300)

    sim = play(tmp_path / "run", scenario, **ALONE | {"total_steps": 12})
    sim.check()
    assert repository.commits == ["sim-step-12", "sim-step-3", "sim-step-9"]
    assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step12")
    messages = _warned(sim.sim_members[0])
    assert (
        messages[0] == "step 6 is not uploaded: an earlier upload took so long that it is outdated"
    )
    assert (
        messages[1]
        == "the chain does not name team/model@sim-step-3 of step 3: a later epoch has ended meanwhile"
    )
    assert len(messages) == 4


def test_endless_upload_is_abandoned_and_directory_named(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = 300.0
    monkeypatch.setattr(checkpoint_writer, "LONGEST_UPLOAD", longest)

    async def scenario(sim: SimulatedRun) -> None:
        _start(sim, repository, seconds=10 * longest)
        await sim.until(lambda run: run.state is RunState.FINISHED)
        assert sim.sim_members[0].alive
        await asyncio.sleep(2 * longest)
        assert not sim.sim_members[0].alive

    sim = play(tmp_path / "run", scenario, **ALONE)
    sim.check()
    assert not repository.sources
    assert (
        _warned(sim.sim_members[0])[0]
        == "step 3 was not uploaded: the upload took longer than 300 s"
    )
    assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step6")


def test_refusing_hub_costs_only_the_upload(tmp_path: Path, repository: Repository) -> None:
    errors = [CheckpointError("the Hub answered 403", "Set HF_TOKEN."), RuntimeError("a bug")]

    def refuse() -> None:
        raise errors[len(repository.sources) - 1]

    repository.before = refuse

    async def scenario(sim: SimulatedRun) -> None:
        _start(sim, repository)
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, **ALONE)
    sim.check()
    assert _warned(sim.sim_members[0]) == [
        f"step {step} was not uploaded: {error}" for step, error in zip((3, 6), errors, strict=True)
    ]
    assert sorted(path.name for path in (sim.place / "kept" / "m0").iterdir()) == [
        "sim-step3",
        "sim-step6",
    ]
    assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step6")


@pytest.mark.slow
def test_upload_after_recorded_directory_is_a_warning(
    tmp_path: Path, repository: Repository
) -> None:
    """The directory is recorded first and stays if its member's turn comes before the
    uploader's.
    """

    async def scenario(sim: SimulatedRun) -> None:
        _start(sim, repository, 1, 2, seconds=12.0)
        sim.hub = None
        sim.add(0)
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, init_min_clients=4, rounds_per_epoch=3, total_steps=9)
    assert sim.check() > 0
    other = sim.place / "kept" / "m3"
    chosen = {steps_before(one.step): one.checkpoint for one in reversed(sim.model.recorded)}
    assert _warned(sim.sim_members[0]) == [
        f"the chain does not name team/model@sim-step-{step} of step {step}: "
        f"it already names {other / f'sim-step{step}'} of step {step}"
        for step in (3, 6, 9)
        if chosen[step].kind is CheckpointKind.LOCAL
    ]
    assert CheckpointKind.LOCAL in {one.kind for one in chosen.values()}  # so a member recorded it
    assert not _warned(sim.sim_members[3])


@pytest.mark.slow
def test_directory_does_not_replace_hub_checkpoint(tmp_path: Path, repository: Repository) -> None:
    """If the run's checkpoint is on the Hub, a member that only writes to a directory keeps it."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = _start(sim, repository, 1, 2)
        await sim.until(
            lambda run: sim.model.checkpoint_step == 4 and run.state is RunState.ROUND_TRAIN
        )
        sim.hub = None
        sim.add(0)
        # at this point the member has shown level 0
        await sim.until(lambda run: run.epoch == 3 and run.state is RunState.ROUND_TRAIN)
        await sim.kill(sim_members[0])
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, rounds_per_epoch=3, total_steps=15)
    assert sim.check(dropped=[sim.sim_members[0]]) > 0
    late = sim.sim_members[3]
    assert [event["step"] for event in late.saw("checkpoint")][-1] == 15
    assert (sim.model.checkpoint.kind, sim.model.checkpoint_step) == (CheckpointKind.HUB, 7)


def test_lost_checkpoint_reply_is_not_warned(tmp_path: Path, repository: Repository) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        chain = _start(sim, repository)[0].chain
        assert chain is not None
        repository.before = lambda: setattr(chain, "replies_lost", 1)
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, **ALONE)
    sim.check()
    assert sim.model.checkpoint.revision == "sim-step-6"
    assert not _warned(sim.sim_members[0])


def test_background_error_of_archive_is_a_warning(tmp_path: Path, repository: Repository) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        chain = _start(sim, repository)[0].chain
        assert chain is not None

        async def checkpoint(*_: object) -> None:
            raise LookupError("nobody expected this")

        chain.checkpoint = checkpoint  # type: ignore[method-assign]
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, **ALONE)
    sim.check()
    *untold, last = _warned(sim.sim_members[0])
    assert untold == [
        f"cannot record the checkpoint of step {step} on the chain: nobody expected this"
        for step in (3, 6)
    ]
    assert last.startswith("no recorded checkpoint has the last 6 steps,")


@pytest.mark.parametrize("name", ["CheckpointMismatch", "CheckpointPlaceRefused"])
def test_member_whose_model_is_not_attested_gets_no_fix(tmp_path: Path, name: str) -> None:
    """The fix asks a person to name what a member has written. That member just tried."""

    async def scenario(sim: SimulatedRun) -> None:
        chain = sim.add(0).chain
        assert chain is not None

        async def checkpoint(*_: object) -> None:
            raise refusal(name, "it is refused", "Name another directory")

        chain.checkpoint = checkpoint  # type: ignore[method-assign]
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, **ALONE)
    (warning,) = _warned(sim.sim_members[0])
    fix = "" if name == "CheckpointMismatch" else "\nName another directory"
    assert warning.endswith(f"sim-step3 of step 3: it is refused{fix}")


def test_upload_without_name_leaves_directory_on_chain(
    tmp_path: Path, repository: Repository
) -> None:
    """The first upload fails, the second succeeds. The run's checkpoint is each epoch's
    directory.
    """

    def refuse() -> None:
        if len(repository.sources) == 1:
            raise CheckpointError("the link has expired")

    repository.before = refuse

    async def scenario(sim: SimulatedRun) -> None:
        sim.hub = Hub("", repository.upload, recordable=False)
        sim.upload_seconds = 1.0
        sim.add(0)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step3")
        await sim.until_finished()

    sim = play(tmp_path / "run", scenario, **ALONE)
    sim.check()
    assert _warned(sim.sim_members[0]) == ["step 3 was not uploaded: the link has expired"]
    assert [event["path"] for event in sim.sim_members[0].saw("checkpoint")][-1] == "sim-step-6"
    assert sim.model.checkpoint.repo == str(sim.place / "kept" / "m0" / "sim-step6")


LATER = "a later epoch has ended meanwhile"
UNATTESTED = "the epoch ended before its members had attested all levels"


@pytest.mark.parametrize(
    ("epoch", "state", "attested", "step", "why"),
    [
        (4, RunState.COOLDOWN, 0b011, 0, None),
        (4, RunState.COOLDOWN, 0b111, 13, None),
        (5, RunState.ROUND_TRAIN, 0b111, 13, None),
        (5, RunState.ROUND_TRAIN, 0b011, 13, UNATTESTED),
        (5, RunState.COOLDOWN, 0b111, 13, LATER),
        (6, RunState.ROUND_TRAIN, 0b111, 13, LATER),
        (4, RunState.COOLDOWN, 0b111, 12, "the members attested step 11"),
    ],
)
def test_checkpoint_of_ended_epoch_is_past_or_due(
    epoch: int, state: RunState, attested: int, step: int, why: str | None
) -> None:
    ended = run(RunState.COOLDOWN, epoch=4, step=13)
    assert (
        checkpoint_writer._why_rejected(
            ended, run(state, epoch=epoch, levels_attested=attested, attested_step=step)
        )
        == why
    )


def test_second_directory_of_same_step_causes_no_warning(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for _ in range(2):
            sim.add(0)
        await sim.until_finished()

    sim = play(
        tmp_path, scenario, rounds_per_epoch=2, total_steps=2, min_clients=2, init_min_clients=2
    )
    assert sim.check() > 0
    assert [len(sim_member.saw("checkpoint")) for sim_member in sim.sim_members] == [1, 1]
    assert not [message for sim_member in sim.sim_members for message in _warned(sim_member)]
