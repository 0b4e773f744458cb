"""Members stop in the same second while the run waits for members, or is paused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.member.stake import Stake
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.repository import Repository
from member.short_runs import SHORT

_RUN = SHORT | {"total_steps": 40, "init_min_clients": 3, "min_clients": 1}
_STATES = [RunState.PAUSED, RunState.WAITING_FOR_MEMBERS]
_WAITS = _RUN | {"waiting_for_members_extra_time": 60}


async def _between(sim: SimulatedRun, tiers: tuple[int, ...], state: RunState) -> list[SimMember]:
    """Return the members after the first epoch, in a state without rounds."""
    members = [sim.add(tier) for tier in tiers]
    await sim.until_round(2)
    if state is RunState.PAUSED:
        sim.pause(True)
    await sim.until(lambda run: run.epoch == 1 and run.state is state)
    await asyncio.sleep(0.5)
    return members


async def _stop(sim: SimulatedRun, members: list[SimMember], apart: float) -> list[Stake | None]:
    """Stop members `apart` seconds after each other. Return what each of them reports."""

    async def stop_later(sim_member: SimMember, seconds: float) -> Stake | None:
        await asyncio.sleep(seconds)
        return await sim.stop(sim_member)

    stops = enumerate(members)
    return await asyncio.gather(*(stop_later(one, apart * order) for order, one in stops))


@pytest.mark.parametrize(
    ("state", "apart"), [*((state, 0.4) for state in _STATES), (RunState.WARMUP, 0.0)]
)
def test_holders_that_stop_at_once_between_epochs_report_loss(
    tmp_path: Path, state: RunState, apart: float
) -> None:
    async def story(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = False
        members = await _between(sim, (0, 1, 1), state)
        trained = sim.run.trained_steps
        lost = await _stop(sim, members, apart)
        for stake, levels in zip(lost, ([0, 1, 2], [1, 2], [1, 2]), strict=True):
            assert stake is not None
            assert (stake.levels, stake.steps) == (levels, trained)
            error = stake.lost()
            assert error.message.startswith(f"{trained} trained steps are lost")
            assert "the run goes back to the initial model" in error.message
            assert (error.fix or "").startswith("Let a tier-0 member with --checkpoint-dir")

    play(tmp_path, story, **_WAITS)


@pytest.mark.parametrize("state", _STATES)
def test_holder_that_leaves_another_between_epochs_loses_nothing(
    tmp_path: Path, state: RunState
) -> None:
    async def story(sim: SimulatedRun) -> None:
        sim.saves_checkpoints = False
        members = await _between(sim, (0, 0, 1), state)
        assert await _stop(sim, [members[0], members[2]], 0.0) == [None, None]

    play(tmp_path, story, **_WAITS)


@pytest.mark.parametrize("state", _STATES)
def test_saved_steps_between_epochs_are_not_lost(tmp_path: Path, state: RunState) -> None:
    """The owner paused the run, and the tier-0 members have recorded the checkpoint."""

    async def story(sim: SimulatedRun) -> None:
        members = await _between(sim, (0, 0, 1), state)
        assert await _stop(sim, members, 0.0) == [None] * 3
        assert not any(one.saw("stopped") for one in members)

    play(tmp_path, story, **_WAITS)


@pytest.mark.parametrize("state", _STATES)
def test_stop_during_upload_between_epochs_records_directory(
    tmp_path: Path, state: RunState
) -> None:
    """Both tier-0 members cancel the upload that would have named the checkpoint."""

    async def story(sim: SimulatedRun) -> None:
        sim.hub = Repository(tmp_path / "hub").hub
        sim.upload_seconds = 1000.0
        members = await _between(sim, (0, 0, 1), state)
        assert sim.model.checkpoint_step == 0
        lost = await _stop(sim, members, 0.0)
        assert sim.model.checkpoint_step == sim.run.step
        assert lost == [None] * 3

    play(tmp_path, story, **_WAITS)
