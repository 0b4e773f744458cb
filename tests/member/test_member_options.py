"""Options of one member that affect its rounds: the share delay and the limit of downloads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftermath.member.payloads import Candidate, Payloads
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import run_virtual
from member.result_inbox import ResultInbox, commitment_of, plan_of
from member.short_runs import ALONE


@pytest.mark.parametrize(("delay", "longer"), [(0.0, False), (6.0, True)])
def test_share_delay_slows_member(tmp_path: Path, delay: float, longer: bool) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.share_delay = delay
        sim.add(0)
        await sim.until_round(2)
        assert (sim.run.state_started_at - sim.run.epoch_started_at > 18) is longer

    play(tmp_path, scenario, **ALONE)


@pytest.mark.parametrize(("downloads", "most"), [(1, 1), (3, 1), (4, 2), (None, 3)])
def test_downloads_of_one_author_are_limited(downloads: int | None, most: int) -> None:
    async def scenario() -> None:
        inbox = ResultInbox()
        running = reached = 0

        async def fetch(*_: Any, **__: Any) -> bytes:
            nonlocal running, reached
            running += 1
            reached = max(reached, running)
            await asyncio.sleep(1.0)
            running -= 1
            return b""

        transport = inbox.ports.transport
        transport.fetch = fetch  # type: ignore[method-assign]
        payloads = Payloads(
            inbox.ports, replace(inbox.role, tier=0), inbox.workers.decode, lambda: None, downloads
        )
        commitment = commitment_of(None, 0)
        candidate = Candidate(commitment, b"", b"")
        await asyncio.gather(
            *(payloads._fetch_level(candidate, level, plan_of()) for level in commitment.levels)
        )
        assert (reached, len(candidate.payloads)) == (most, 3)

    run_virtual(scenario())
