"""Test what members keep in memory for audits, and when they free it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftermath.audit.claim import RESIDUAL
from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.share_audit import Judgement
from aftermath.member.rounds.judge import AuditedResult, Judge
from aftermath.optim.engine import outline_of
from aftermath.optim.state_merkle import BLOCK
from aftermath.replica.state_sharing import TOPIC as STATE_TOPIC
from aftermath.replica.state_sharing import StateBlock, StateShare, StoredBlocks
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.false_training import skip_half, train_other_data
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import InlineWorker, VirtualClock
from member.test_member_audits import RULES, SPARSELOCO, corrupt_member, seat_of, verdicts


def share_of(sim_member: SimMember) -> StateShare:
    assert sim_member.member is not None
    return sim_member.member._own_state._share


def lent_by(sim_member: SimMember) -> int:
    """Return the number of states of which a member lends blocks."""
    return len(share_of(sim_member)._lent)


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


def test_stored_blocks_take_no_memory(tmp_path: Path) -> None:
    contents = [bytes([number]) * BLOCK for number in range(64)]
    whole = len(contents) * BLOCK
    proof = (bytes(32),)
    tracemalloc.start()
    blocks = StoredBlocks(tmp_path)
    for index in range(64):
        blocks[index] = StateBlock(bytes([index]) * BLOCK, proof)
    same = all(blocks[index] == (contents[index], proof) for index in blocks)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert same
    assert len(blocks) == 64
    assert 64 not in blocks
    assert most < whole / 8


class Comparisons:
    """Counts the results that each judge compares at a time, whose states it holds in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[Judge] = Counter()
        self._now: Counter[Judge] = Counter()
        honest_compare = Judge._compare

        async def compare(judge: Judge, *arguments: Any) -> Judgement:
            self._now[judge] += 1
            self.most[judge] = max(self.most[judge], self._now[judge])
            try:
                return await honest_compare(judge, *arguments)
            finally:
                self._now[judge] -= 1

        monkeypatch.setattr(Judge, "_compare", compare)


@pytest.mark.slow
def test_judge_holds_states_of_one_result_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays take as long as a round, and two auditors accuse everyone."""
    comparisons = Comparisons(monkeypatch)
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
    assert comparisons.most
    assert max(comparisons.most.values()) == 1


def serve_slowly(sim: SimulatedRun, sim_member: SimMember, seconds: float) -> None:
    """Let a member take `seconds` to serve any block that is not of a residual.

    It serves residual blocks at once, or it would be dropped.
    """
    assert sim_member.transport is not None
    serve = share_of(sim_member).answer
    outline = outline_of(sim.schema, 0)

    async def answer(peer: bytes, body: bytes) -> bytes:
        index = int.from_bytes(body[-4:], "little")
        if not outline.place(index).name.startswith(RESIDUAL):
            await asyncio.sleep(seconds)
        return await serve(peer, body)

    sim_member.transport.handle(STATE_TOPIC, answer)


@pytest.mark.slow
def test_slow_members_delay_no_other_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One member never answers, and one has a slow line. Only the first is not judged."""
    waits: dict[int, list[float]] = {}
    honest_judge = Judge.judge
    honest_compare = Judge._compare
    began: dict[tuple[Judge, bytes], float] = {}

    async def judge(judge: Judge, result: AuditedResult, *arguments: Any) -> Judgement:
        began[judge, result.commitment.digest] = VirtualClock().monotonic()
        return await honest_judge(judge, result, *arguments)

    async def compare(judge: Judge, result: AuditedResult, *arguments: Any) -> Judgement:
        wait = VirtualClock().monotonic() - began[judge, result.commitment.digest]
        waits.setdefault(result.commitment.seat, []).append(wait)
        return await honest_compare(judge, result, *arguments)

    monkeypatch.setattr(Judge, "judge", judge)
    monkeypatch.setattr(Judge, "_compare", compare)

    async def scenario(sim: SimulatedRun) -> None:
        *_, slow, silent = [sim.add(0) for _ in range(5)]
        await sim.until_round(0)
        serve_slowly(sim, slow, 0.8)
        serve_slowly(sim, silent, 1e6)
        await sim.until_finished()

    sim = play(tmp_path, scenario, optimizer=SPARSELOCO, **RULES | {"min_round_time": 20})
    *fast, slow, silent = (seat_of(sim, one) for one in sim.sim_members)
    judged = Counter((event["seat"], event["verdict"]) for event in verdicts(sim))
    assert all(waits[seat] and max(waits[seat]) < 10.0 for seat in fast)
    assert waits[slow]
    assert judged[slow, "match"] >= 4
    assert not judged[silent, "match"]
