"""A member reports only epochs that it finished, whatever the run has begun or abandoned since."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play


async def _asleep_in_round(sim: SimulatedRun, sim_member: SimMember, height: int) -> None:
    await sim.until_round(height)
    await asyncio.sleep(1)
    assert sim_member.chain is not None
    sim_member.chain.down = True


def _awake(sim_member: SimMember) -> None:
    assert sim_member.chain is not None
    sim_member.chain.down = False


@pytest.mark.slow
@pytest.mark.parametrize("end", ["abandoned", "paused", "paused and resumed"])
def test_rounds_cleared_by_new_warm_up_do_not_count(tmp_path: Path, end: str) -> None:
    """The chain has lost the last rounds of epoch 0 and waits in epoch 1 as if it had just
    ended.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await _asleep_in_round(sim, sim_members[0], 1)
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WARMUP)
        if end == "abandoned":
            for sim_member in sim_members[2:]:
                await sim.stop(sim_member)
            await sim.until(lambda run: run.state is RunState.WAITING_FOR_MEMBERS, limit=5)
        else:
            sim.pause(True)
            if end == "paused and resumed":
                sim.pause(False)
        _awake(sim_members[0])
        await sim.until(lambda run: bool(sim_members[0].saw("warning")), limit=60)
        messages = [event["message"] for event in sim_members[0].saw("warning")]
        assert any(
            message.startswith("fell out of this epoch: the epoch continued")
            for message in messages
        ), messages
        if end == "paused":
            sim.pause(False)
        for sim_member in sim_members:
            if not sim_member.alive:
                sim.start(sim_member)
        await sim.until_finished()

    sim = play(tmp_path, scenario, rounds_per_epoch=3, total_steps=9)
    late = sim.sim_members[0]
    ended = [event["epoch"] for event in late.saw("cooldown")]
    assert ended
    assert min(ended) > 0
    assert [event["source"] for event in late.saw("model")][:2] == ["the checkpoint", "peers"]
    assert sim.check() > 0


def test_rewind_during_pause_ends_no_epoch(tmp_path: Path) -> None:
    """A member finds the run paused right after its epoch and rewound to a step that it has no
    model of.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await _asleep_in_round(sim, sim_members[0], 1)
        sim.pause(True)
        run = await sim.until(lambda run: run.state is RunState.PAUSED)
        progress = {"epoch": run.epoch, "step": 2, "data_index": run.data_index}
        sim.chain.send([sim.ix.update("sim", progress=progress)], sim.owner)
        _awake(sim_members[0])
        await asyncio.sleep(30)
        assert not sim_members[0].saw("cooldown")
        assert not sim_members[0].saw("checkpoint")

    play(tmp_path, scenario, rounds_per_epoch=3)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 2])
def test_member_asleep_over_epochs_reports_none_of_them(tmp_path: Path, epochs: int) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await _asleep_in_round(sim, sim_members[0], 1)
        await sim.until(
            lambda run: run.epoch == 1 + epochs and run.state is RunState.WAITING_FOR_MEMBERS
        )
        _awake(sim_members[0])
        await sim.until_finished()

    sim = play(tmp_path, scenario, rounds_per_epoch=3, total_steps=3 * (epochs + 3))
    ended = [event["epoch"] for event in sim.sim_members[0].saw("cooldown")]
    assert ended
    assert min(ended) > epochs
    assert sim.check() > 0
