"""Duties that the chain refuses: final refusals are not retried, and an empty wallet backs off."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from solders.account import Account

from aftermath.chain.refusals import refusal
from aftermath.localnet.runtime import SYSTEM_ID
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import SHORT


def _tries(
    sim: SimulatedRun, sim_member: SimMember, duty: str, name: str | None = None
) -> list[tuple[object, float]]:
    """Return the times of a member's attempts at a duty, with height or seat, filtered by the
    refusal.
    """
    assert sim_member.chain is not None
    call = getattr(sim_member.chain, duty)
    tries = []

    async def noted(*what: Any, **more: Any) -> None:
        tries.append((what[0] if duty == "warmup_witness" else what[1].height, sim.now))
        if name is not None:
            raise refusal(name, "no")
        await call(*what, **more)

    setattr(sim_member.chain, duty, noted)
    return tries


def _told(sim_member: SimMember, duty: str) -> list[str]:
    return [
        e["message"]
        for e in sim_member.saw("warning")
        if duty in e["message"] and "was refused" in e["message"]
    ]


def _purse(sim: SimulatedRun, sim_member: SimMember, lamports: int) -> None:
    sim.chain.node.bank.store([(sim_member.key.pubkey(), Account(lamports, b"", SYSTEM_ID, False))])


def test_permanently_refused_attestation_is_tried_once_a_round(tmp_path: Path) -> None:
    """The others wait for it until the round's time is up, and continue without it."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(0)
        tries = _tries(sim, sim_members[1], "witness", "BadParticipation")
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        times = Counter(height for height, _ in tries)
        assert len(times) >= 3
        assert set(times.values()) == {1}
        assert len(_told(sim_members[1], "the attestation of round")) == len(times)

    assert play(tmp_path, scenario, rounds_per_epoch=3).check() > 0


def test_attestation_is_retried_often_when_next_in_line(tmp_path: Path) -> None:
    """The member believes that an earlier witness left, but that one has attested. It may still
    leave.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(0)
        tries = _tries(sim, sim_members[1], "witness", "NotElected")
        await sim.until_round(1)
        times = [time for height, time in tries if height == 0]
        assert len(times) >= 5
        assert all(after - before < 1 for before, after in itertools.pairwise(times))
        assert not _told(sim_members[1], "the attestation of round")

    play(tmp_path, scenario, round_witness_time=3)


@pytest.mark.slow
def test_empty_wallet_is_retried_with_backoff_until_funded(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        tries = {
            sim_member.name: _tries(sim, sim_member, "witness") for sim_member in sim_members[1:]
        }
        for sim_member in sim_members[1:]:
            _purse(sim, sim_member, 1000)
        await asyncio.sleep(40)
        assert (sim.run.current.height, sim.run.state) == (1, RunState.ROUND_TRAIN), (
            "without a quorum"
        )
        for sim_member in sim_members[1:]:
            times = [time for height, time in tries[sim_member.name] if height == 1]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert all(gap >= least for gap, least in zip(gaps, (5, 10, 20), strict=True))
            (message,) = _told(sim_member, "the attestation of round 1")
            assert "holds 0.000001 SOL but needs" in message
            _purse(sim, sim_member, 10**12)
        await sim.until_finished()
        assert all(sim_member.saw("witnessed", height=1, sent=True) for sim_member in sim_members)

    sim = play(tmp_path, scenario, max_round_train_time=90, **SHORT)
    assert sim.check() == 24
    assert sim.run.lost_sequences == 0


@pytest.mark.parametrize(
    "name", ["BadParticipation", pytest.param("InsufficientFunds", marks=pytest.mark.slow)]
)
def test_refused_readiness_report_is_not_repeated(tmp_path: Path, name: str) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        tries = [_tries(sim, sim_member, "warmup_witness", name) for sim_member in sim_members[1:]]
        began = (await sim.until(lambda run: run.state is RunState.WARMUP)).state_started_at
        run = await sim.until_round(0)
        assert run.state_started_at - began >= run.config.warmup_time, "without a quorum"
        for sim_member, times in zip(sim_members[1:], tries, strict=True):
            assert len(times) == (1 if name == "BadParticipation" else 3)
            assert len(_told(sim_member, "the report that this member is ready")) == 1
        await sim.until(lambda run: run.state is RunState.COOLDOWN)

    assert play(tmp_path, scenario, rounds_per_epoch=2).check() > 0
