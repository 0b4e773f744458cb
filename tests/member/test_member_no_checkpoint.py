"""Members warn while the chain has no checkpoint, and name the checkpoint of a finished run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.rules.run import steps_before
from aftermath.rules.state import RunState
from aftermath.sim.simulation import SimulatedRun, play
from member.disk import Disk
from member.short_runs import ALONE, SHORT

LOST = (
    "no recorded checkpoint has the last {}, but a member's --checkpoint-dir may have one; otherwise that "
    "training is lost when the last member ends"
)


@pytest.mark.slow
def test_run_without_checkpoint_warns_each_epoch_and_at_end(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = False
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    for sim_member in sim.sim_members:
        messages = [event["message"].splitlines() for event in sim_member.saw("warning")]
        # the only holder of level 0 ends with an error that says more
        last = [LOST.format("6 steps")] if sim_member.tier else []
        assert [lines[0] for lines in messages] == [LOST.format("3 steps"), *last]
        assert "--checkpoint-dir DIR" in messages[0][1]
        assert bool(sim_member.lost) is not bool(sim_member.tier)
        assert [event.get("checkpoint") for event in sim_member.saw("finished")] == [None]


def test_newcomer_in_last_epoch_leaves_with_reason(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0)
        await sim.until_round(1)
        late = sim.add(1)
        await sim.until(lambda _: not late.alive)
        assert sim.run.state.training
        await sim.until_finished()

    first, late = play(tmp_path, scenario, **ALONE | {"rounds_per_epoch": 6}).sim_members
    assert [event.get("leaves", False) for event in late.saw("waiting")] == [False, True]
    assert [event["epoch"] for event in late.saw("joined")] == [0]
    assert {event["state"] for event in first.saw("state", last=True)} == {"WARMUP"}
    assert len(first.saw("joined")) == 1, "nobody signs up for an epoch after the last"


@pytest.mark.slow
def test_finished_members_name_checkpoint_of_chain(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path, scenario, **SHORT)
    (path,) = [
        event["path"] for event in sim.sim_members[0].saw("checkpoint") if event["step"] == 6
    ]
    for sim_member in sim.sim_members:
        assert not sim_member.saw("warning")
        assert [event["checkpoint"] for event in sim_member.saw("finished")] == [path]
        saved_here = sim_member.tier == 0
        assert bool(sim_member.saw("finished", elsewhere=True)) is not saved_here


@pytest.mark.slow
@pytest.mark.parametrize("asks", [False, True])
def test_finished_run_keeps_model_until_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """The disk is full from step 6 until long after the run's end."""
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        sim.confirms_loss = asks
        sim_member = sim.add(0)
        await sim.until(lambda run: run.epoch == 1)
        disk.full = True
        await sim.until(lambda run: run.state is RunState.FINISHED)
        await asyncio.sleep(500)
        assert sim_member.alive
        (finished,) = sim_member.saw("finished")
        assert finished["checkpoint_step"] == 3
        first, second = [event["message"] for event in sim_member.saw("warning")]
        assert first.startswith("no checkpoint of step 6 was saved: the disk of")
        assert second.startswith(
            "3 trained steps are in no checkpoint: this member keeps the model"
        )
        assert ("press Ctrl-C twice" in second) is asks
        assert ("The next Ctrl-C or SIGTERM ends this member" in second) is not asks
        disk.full = False
        await sim.until_finished()
        assert [event["step"] for event in sim_member.saw("checkpoint")] == [3, 6]
        assert steps_before(sim.model.checkpoint_step) == 6
        assert not sim_member.lost

    play(tmp_path, scenario, **ALONE)


def test_restarted_sole_member_of_finished_run_reports_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member was killed while its disk was full. The disk has space when it returns."""
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        disk.full = True
        await sim.until(lambda run: run.state is RunState.FINISHED)
        await asyncio.sleep(5)
        await sim.kill(sim_member)
        disk.full = False
        for _ in range(2):
            sim_member.lost = ""
            sim.start(sim_member)
            await sim.until_finished()
            assert sim_member.lost.startswith("6 trained steps are lost: no checkpoint has them")

    play(tmp_path, scenario, **ALONE)


def test_failed_checkpoint_is_retried_in_cooldown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        disk.failures = 2
        sim_member = sim.add(0)
        await sim.until(lambda run: run.epoch == 1)
        assert steps_before(sim.model.checkpoint_step) == 3
        assert [event["step"] for event in sim_member.saw("checkpoint")] == [3]
        assert len(sim_member.saw("warning")) == 1

    play(tmp_path, scenario, **ALONE)
    assert disk.failures == 0
