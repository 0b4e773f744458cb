"""Test what members keep in memory for audits, and when they free it."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftermath.audit.claim import RESIDUAL, ProvenBlocks
from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.share_audit import Judgement
from aftermath.member.rounds.evidence_fetch import EvidenceFetch
from aftermath.member.rounds.judge import Judge, Turns
from aftermath.optim.engine import outline_of
from aftermath.replica.state_sharing import TOPIC as STATE_TOPIC
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.false_training import skip_half, train_other_data
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import InlineWorker, VirtualClock, run_virtual
from member.test_member_audits import RULES, SPARSELOCO, corrupt_member, seat_of, verdicts


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


class HeldEvidence:
    """Counts the results whose fetched states each member holds at a time, by p2p key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[bytes] = Counter()
        self._now: Counter[bytes] = Counter()
        fetch = EvidenceFetch.evidence

        async def evidence(fetcher: EvidenceFetch, *arguments: Any) -> ProvenBlocks:
            blocks = await fetch(fetcher, *arguments)
            member = fetcher._ports.transport.node_id
            self._now[member] += 1
            self.most[member] = max(self.most[member], self._now[member])
            weakref.finalize(blocks, self._now.subtract, {member: 1})
            return blocks

        monkeypatch.setattr(EvidenceFetch, "evidence", evidence)


@pytest.mark.slow
def test_judge_holds_states_of_one_result_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays take as long as a round, and two auditors accuse everyone."""
    held = HeldEvidence(monkeypatch)
    accusers: set[bytes] = set()
    honest_judge = Judge.judge

    async def judge(judge: Judge, *arguments: Any) -> Judgement:
        if judge._role.p2p_secret in accusers:
            return Judgement(AuditVerdict.MISMATCH, "no reason")
        return await honest_judge(judge, *arguments)

    monkeypatch.setattr(Judge, "judge", judge)

    async def scenario(sim: SimulatedRun) -> None:
        members = [sim.add(0) for _ in range(7)]
        for one in members:
            assert one.member is not None
            slow = replace(one.member._workers, audit=InlineWorker(8.0))
            monkeypatch.setattr(one.member, "_workers", slow)
        accusers.update(one.identity.secret() for one in members[-2:])
        await sim.until_round(7, epoch=1)

    size = {"global_batch_size_start": 28, "global_batch_size_end": 28}
    rules = {"init_min_clients": 7, "total_steps": 40}
    sim = play(tmp_path, scenario, optimizer=SPARSELOCO, **RULES | rules | size)
    assert any(one.saw("case_opened") for one in sim.sim_members)
    assert held.most
    assert max(held.most.values()) == 1


async def first_turn_of(turns: Turns, seconds: float, *, others: int) -> float:
    """Return when a turn is over, if others begin to wait for theirs after 50 seconds."""

    async def wait_for_turn() -> None:
        await clock.sleep(50.0)
        async with turns.next():
            pass

    clock = VirtualClock()
    began = clock.monotonic()
    async with turns.next():
        waiting = [asyncio.ensure_future(wait_for_turn()) for _ in range(others)]
        await turns.is_over(seconds)
        ended = clock.monotonic()
    await asyncio.gather(*waiting)
    return ended - began


@pytest.mark.parametrize(("seconds", "expected"), [(10.0, 50.0), (80.0, 80.0)])
def test_turn_ends_after_its_time_if_another_waits(seconds: float, expected: float) -> None:
    ended = run_virtual(first_turn_of(Turns(VirtualClock()), seconds, others=2))
    assert expected <= ended <= expected + 1.0


@pytest.mark.slow
def test_member_that_never_answers_delays_no_other_audit(tmp_path: Path) -> None:
    """It serves its residual, or else it would be dropped."""

    async def scenario(sim: SimulatedRun) -> None:
        *_, silent = [sim.add(0) for _ in range(5)]
        await sim.until_round(0)
        assert silent.member is not None
        assert silent.transport is not None
        serve = silent.member._own_state._share.answer
        outline = outline_of(sim.schema, 0)

        async def answer(peer: bytes, body: bytes) -> bytes:
            index = int.from_bytes(body[-4:], "little")
            if not outline.place(index).name.startswith(RESIDUAL):
                await asyncio.Event().wait()
            return await serve(peer, body)

        silent.transport.handle(STATE_TOPIC, answer)
        await sim.until_finished()

    sim = play(tmp_path, scenario, optimizer=SPARSELOCO, **RULES | {"min_round_time": 20})
    *_, silent = sim.sim_members
    judged: dict[str, set[int]] = {"match": set(), "abstained": set()}
    for event in verdicts(sim):
        judged[event["verdict"]].add(event["seat"])
    assert judged["abstained"] == {seat_of(sim, silent)}
    assert judged["match"] == {seat_of(sim, one) for one in sim.sim_members} - judged["abstained"]
