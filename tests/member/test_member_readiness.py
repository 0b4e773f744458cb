"""A warm-up waits for members that still fetch the model, but not for members that never report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aftermath.rules.announcements import Ready, decode_announcement
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play

WARMUP = 40


def _never_ready(sim_member: SimMember) -> None:
    transport = sim_member.transport
    chain = sim_member.chain
    assert transport is not None
    assert chain is not None
    honest = transport.announce

    async def announce(data: bytes) -> None:
        if not isinstance(decode_announcement(data), Ready):
            await honest(data)

    async def nothing(*_: Any) -> None:
        pass

    transport.announce = announce  # type: ignore[method-assign]
    chain.warmup_witness = nothing  # type: ignore[method-assign]


def _warmup(sim: SimulatedRun, sim_member: SimMember) -> float:
    """Return how long the second epoch's warm-up lasted."""
    began = sim_member.saw("state", epoch=1, state=RunState.WARMUP.name)[-1]["t"]
    return float(sim_member.saw("round", epoch=1)[0]["t"] - began)


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True])
def test_never_ready_member_costs_half_a_warm_up(tmp_path: Path, silent: bool) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        await sim.until_round(1)
        if silent:
            _never_ready(sim_members[0])
        await sim.until_round(1, epoch=1)

    sim = play(tmp_path, scenario, init_min_clients=4, warmup_time=WARMUP, rounds_per_epoch=3)
    took = _warmup(sim, sim.sim_members[1])
    assert WARMUP / 2 <= took < WARMUP / 2 + 3 if silent else took < 10
    assert not sim.record.dropped
    assert sim.compare(sim.sim_members) > 0


@pytest.mark.slow
def test_newcomer_fetching_model_is_awaited(tmp_path: Path) -> None:
    """The newcomer needs more than half of the warm-up's time."""

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_round(1)
        newcomer = sim.add(0)
        assert newcomer.transport is not None
        honest = newcomer.transport.fetch

        async def slowly(*args: Any, **more: Any) -> bytes:
            await asyncio.sleep(6.0)
            return await honest(*args, **more)

        newcomer.transport.fetch = slowly  # type: ignore[method-assign]
        await sim.until_round(0, epoch=1)
        newcomer.transport.fetch = honest  # type: ignore[method-assign]
        await sim.until(lambda run: run.epoch == 2)

    sim = play(tmp_path, scenario, warmup_time=WARMUP, rounds_per_epoch=3, total_steps=9)
    newcomer = sim.sim_members[3]
    assert [event["source"] for event in newcomer.saw("model")] == ["peers"]
    assert newcomer.saw("model")[0]["t"] <= sim.sim_members[1].saw("round", epoch=1)[0]["t"]
    assert WARMUP / 2 + 5 < _warmup(sim, sim.sim_members[1]) < WARMUP
    assert len(newcomer.saw("trained", epoch=1)) == 3
    assert sim.check() > 0
