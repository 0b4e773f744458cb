"""Test what members keep in memory for audits, and when they free it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aftermath.rules.state import MemberState, RunState
from aftermath.sim.false_training import skip_half, train_other_data
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.test_member_audits import RULES, SPARSELOCO, corrupt_member, seat_of


def lent_by(sim_member: SimMember) -> int:
    """Return the number of states of which a member lends blocks."""
    assert sim_member.member is not None
    return len(sim_member.member._own_state._share._lent)


@pytest.mark.slow
def test_only_drawn_results_are_kept_after_draw(tmp_path: Path) -> None:
    kept: dict[int, set[int]] = {}
    drawn: dict[int, set[int]] = {}

    async def scenario(sim: SimulatedRun) -> None:
        members = [sim.add(0) for _ in range(5)]
        for height in range(3, RULES["rounds_per_epoch"]):
            await sim.until_round(height, epoch=1)
            for one in members:
                assert one.member is not None
                assert one.member._rounds is not None
                audits = one.member._rounds._audits
                for (drawn_at, _), results in audits._drawn_by_round.items():
                    drawn.setdefault(drawn_at, set()).update(results)
                for recorded_at, seat in audits._audited:
                    kept.setdefault(recorded_at, set()).add(seat)

    play(tmp_path, scenario, **RULES | {"verification_percent": 40})
    assert any(drawn.values())
    assert any(len(results) < 4 for results in drawn.values())
    assert all(kept.get(height, set()) <= results for height, results in drawn.items())


@pytest.mark.slow
def test_evidence_is_dropped_after_its_rounds_were_judged(tmp_path: Path) -> None:
    lent: list[int] = []

    async def scenario(sim: SimulatedRun) -> None:
        *honest, cheating = [sim.add(0) for _ in range(5)]
        await sim.until_round(1)
        corrupt_member(cheating, skip_half)
        seat = seat_of(sim, cheating)
        await sim.until(lambda _: sim.members.seats[seat].state is MemberState.EJECTED)
        lent.append(sum(map(lent_by, honest)))
        await sim.kill(cheating)
        await sim.until(lambda run: run.epoch == 2 and run.current.height == 3)
        lent.append(sum(map(lent_by, honest)))

    play(tmp_path, scenario, optimizer=SPARSELOCO, **RULES | {"total_steps": 24})
    assert lent[0] > 0
    assert lent[1] == 0


@pytest.mark.slow
def test_evidence_is_dropped_after_cooldown(tmp_path: Path) -> None:
    lent: list[int] = []

    async def scenario(sim: SimulatedRun) -> None:
        *honest, cheating = [sim.add(0) for _ in range(5)]
        await sim.until_round(4, epoch=1)
        corrupt_member(cheating, train_other_data)
        await sim.until(lambda run: run.state is RunState.COOLDOWN and any(map(lent_by, honest)))
        lent.append(sum(map(lent_by, honest)))
        await sim.until(lambda run: run.state is RunState.WAITING_FOR_MEMBERS)
        await asyncio.sleep(3)
        assert sim.run.state is RunState.WAITING_FOR_MEMBERS
        lent.append(sum(map(lent_by, honest)))

    play(tmp_path, scenario, optimizer=SPARSELOCO, **RULES | {"total_steps": 24})
    assert lent[0] > 0
    assert lent[1] == 0
