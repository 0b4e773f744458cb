"""The owner of a paused run changes what it trains while members stay connected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aftermath.base.errors import Unsuitable
from aftermath.member.status_events import RunChanged, require_unchanged
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.disk import Disk
from member.short_runs import ALONE
from rules import builders


async def _paused_in_epoch_1(sim: SimulatedRun) -> None:
    await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WARMUP)
    sim.pause(True)
    await sim.until(lambda run: run.state is RunState.PAUSED)


async def _end_of(sim_member: SimMember) -> BaseException | None:
    """Return the error that ends a member."""
    assert sim_member.task is not None
    await asyncio.wait([sim_member.task], timeout=300)
    error = sim_member.task.exception()
    sim_member.task = None
    return error


def _later_spec(sim: SimulatedRun) -> bytes:
    """Return a spec of a client version that knows more architectures."""
    return sim.spec.replace(b"HfLlama", b"HfMamba")


def _warnings(sim_member: SimMember) -> list[str]:
    return [event["message"] for event in sim_member.saw("warning")]


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("architecture", 9, "architecture"),
        ("schema_hash", b"\1" * 32, "model or optimizer"),
        ("data_type", 1, "data_type"),
        ("max_seq_len", 7, "max_seq_len"),
    ],
)
def test_member_of_another_run_than_at_start_ends(field: str, value: Any, part: str) -> None:
    first = builders.model()
    require_unchanged(first, builders.model(checkpoint_step=4, spec_hash=b"\3" * 32))
    with pytest.raises(RunChanged, match=f"changed its {part} while") as raised:
        require_unchanged(first, builders.model(**{field: value}))
    assert "Restart train" in raised.value.fix


def test_member_ends_when_data_of_paused_run_changed(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await _paused_in_epoch_1(sim)
        sim.write_spec(sim.spec.replace(b'"path":"', b'"path":"other/'))
        await asyncio.sleep(30)
        assert sim_member.alive, "the owner may change it back"
        sim.pause(False)
        assert isinstance(error := await _end_of(sim_member), RunChanged)
        assert "data_location" in error.message
        assert sim.run.trained_steps == 3

    play(tmp_path, scenario, **ALONE)


def test_member_continues_after_owner_restored_config(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await _paused_in_epoch_1(sim)
        for spec in (_later_spec(sim), sim.spec.replace(b'"path":"', b'"path":"x'), sim.spec):
            sim.write_spec(spec)
            await asyncio.sleep(30)
        (warning,) = [one for one in _warnings(sim_member) if "HfMamba" in one]
        assert "this member waits" in warning
        sim.pause(False)
        await sim.until_finished()
        assert len(sim_member.saw("applied")) == 6

    play(tmp_path, scenario, **ALONE)


@pytest.mark.parametrize("keeps", [True, False])
def test_resume_with_unreadable_spec_saves_or_names_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """The disk was full when epoch 0 ended."""
    disk = Disk(monkeypatch)

    async def scenario(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = keeps
        disk.full = True
        sim_member = sim.add(0)
        await _paused_in_epoch_1(sim)
        disk.full = False
        sim.write_spec(_later_spec(sim))
        await asyncio.sleep(30)
        assert sim_member.alive
        sim.pause(False)
        assert isinstance(error := await _end_of(sim_member), Unsuitable)
        assert "HfMamba" in error.message
        assert [event["step"] for event in sim_member.saw("stopped")] == [3] * keeps
        lost = [one for one in _warnings(sim_member) if "3 trained steps are lost" in one]
        assert len(lost) == (not keeps)

    play(tmp_path, scenario, **ALONE)
