"""Runs without overlap: a round's results are applied when the next begins, without a drain
round.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.rules.state import ExitReason, RunState
from aftermath.sim.setup import RUN_ID
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.dishonest_members import falsify_results, other_result, sign, tell_all
from member.short_runs import EITHER_OVERLAP, SHORT


def _down(sim_member: SimMember, down: bool) -> None:
    assert sim_member.chain is not None
    sim_member.chain.down = down


@pytest.mark.slow
def test_three_unequal_members_without_overlap_finish(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0, seconds=0.5), sim.add(1), sim.add(2, seconds=2.0)
        await sim.until_finished()

    sim = play(
        tmp_path, scenario, overlap=0, global_batch_size_start=21, global_batch_size_end=21, **SHORT
    )
    assert sim.check() == 24
    assert (sim.run.lost_sequences, sim.run.backlog, sim.run.data_index) == (0, 0, 6 * 21)
    for sim_member in sim.sim_members:
        assert not sim_member.saw("warning"), sim_member.name
        assert [e["height"] for e in sim_member.saw("round")] == 2 * [*range(3)], (
            "without a drain round"
        )
        events = [e for e in sim_member.events if e["kind"] in ("applied", "trained", "cooldown")]
        assert [e["kind"] for e in events] == 2 * (3 * ["trained", "applied"] + ["cooldown"]), (
            sim_member.name
        )


@pytest.mark.slow
def test_late_joiner_without_overlap_loads_model_from_peers(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_round(1)
        sim.add(0)
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=0, **SHORT)
    late = sim.sim_members[3]
    assert [event["source"] for event in late.saw("model")] == ["peers"]
    assert len(late.saw("applied")) == 3
    assert sim.check() == 36


@pytest.mark.slow
def test_killed_member_without_overlap_is_dropped(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        await sim.kill(sim_members[1])
        await sim.until_round(2)
        again.append(sim.run.current.redone)
        await sim.until_round(4)
        roster.append(sim.run.current.roster)
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        sim.start(sim_members[1])
        await sim.until_finished()

    again: list[int] = []
    roster: list[int] = []
    sim = play(tmp_path, scenario, overlap=0, rounds_per_epoch=5, total_steps=8)
    assert (again, [mask.bit_count() for mask in roster]) == ([3], [2])
    assert {e["height"] for sim_member in sim.sim_members for e in sim_member.saw("dropped")} == {2}
    assert sim.run.lost_sequences == 0
    assert sim.check(dropped=[sim.sim_members[1]]) == 18


@pytest.mark.slow
def test_member_leaving_after_its_result_is_credited(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        await sim.until(lambda run: bool(sim_members[2].saw("trained", height=1)))
        await sim.stop(sim_members[2])
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        sim.start(sim_members[2])
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=0, **SHORT)
    assert not sim.record.dropped
    assert sim.check() > 0
    assert (sim.run.lost_sequences, sim.run.backlog) == (0, 0)


@pytest.mark.slow
def test_slow_member_without_overlap_is_awaited(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0), sim.add(1), sim.add(2, seconds=3.0)
        await sim.until_finished()

    sim = play(
        tmp_path, scenario, overlap=0, global_batch_size_start=45, global_batch_size_end=45, **SHORT
    )
    assert sim.check() == 24
    assert len(sim.sim_members[2].saw("trained")) == 6


@pytest.mark.slow
def test_too_slow_member_without_overlap_is_warned(tmp_path: Path) -> None:
    """Witnesses wait until shortly before the round's limit, so a member may work almost that
    long.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim.add(0), sim.add(1), slow.append(sim.add(2))
        await sim.until_round(0)
        slow[0].compute._seconds = 8.0  # type: ignore[union-attr]
        await sim.until(lambda run: run.epoch == 1)

    slow: list[SimMember] = []
    sim = play(tmp_path, scenario, overlap=0, warmup_time=200, max_round_train_time=10)
    given_up, too_slow = (event["message"] for event in slow[0].saw("warning")[:2])
    assert given_up == "skipped round 0: too slow, the run moved on"
    assert "3 sequences took more than 16 s, but a round leaves at most 8 s" in too_slow
    assert sim.run.lost_sequences == 0
    assert sim.check(dropped=slow) > 0


def test_missing_result_is_redone_in_next_round(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(2)
        replica = sim_members[1].member._replica  # type: ignore[union-attr]
        assert replica is not None

        def broken(*_: Any) -> NoReturn:
            raise NonFiniteGradient("the gradient is not finite")

        replica.train = broken  # type: ignore[method-assign,assignment]
        seat = next(
            seat
            for seat, one in enumerate(sim.members.seats)
            if one.signer == sim_members[1].wallet
        )
        header = (await sim.until_round(3)).current
        before = sim.run.round(2)
        assert before is not None
        assert before.attested == before.roster & ~(1 << seat)
        assert [before.data_index <= one.start < before.data_index + 9 for one in header.redo] == [
            True
        ]
        assert header.redone == 3
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, overlap=0)
    assert sim.run.lost_sequences == 0
    assert sim.check(dropped=[sim.sim_members[1]]) > 0


@pytest.mark.slow
def test_equivocating_member_delivers_nothing(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        await sim.until_round(1)
        liar = sim_members[0]

        async def lie(commitment: Any, transport: Any) -> None:
            for one in (commitment, other_result(sim, commitment, transport)):
                tell_all(transport, sign(liar, one))

        falsify_results(liar, lie)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, overlap=0, init_min_clients=4, rounds_per_epoch=3)
    liar, *honest = sim.sim_members
    assert sim.check(hostile=[liar]) > 0
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} == {liar.wallet}
    assert all(
        any("another result" in e["why"] for e in sim_member.saw("refused"))
        for sim_member in honest
    )


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(5, marks=pytest.mark.nightly), pytest.param(20, marks=pytest.mark.slow)],
)
def test_outage_for_all_members_loses_no_step(tmp_path: Path, seconds: float) -> None:
    """Outlasted rounds make no step, and their data is trained later. The run still gets all steps.

    The outage begins with the round, before any member can read the result of the previous one.
    """

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)

        def begin() -> None:
            if not began and (sim.run.epoch, sim.run.current.height) == (0, 2):
                began.append(sim.now)
                sim.chain.down = True

        began: list[float] = []
        sim.chain.observers.append(begin)
        await sim.until_round(2)
        await asyncio.sleep(seconds)
        sim.chain.down = False
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=0, **SHORT)
    assert not sim.record.dropped
    assert sim.run.lost_sequences == 0
    rounds, epochs = (6, 2) if seconds < sim.run.config.max_round_train_time else (7, 3)
    assert sim.check() == 3 * (rounds + epochs)


@pytest.mark.slow
def test_too_few_witnesses_without_overlap_drop_nobody(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        for sim_member in sim_members[:2]:
            _down(sim_member, True)
        run = await sim.until(lambda run: run.state is RunState.COOLDOWN)
        assert (run.exit_reason, run.draining, run.current.height) == (
            ExitReason.QUORUM_MISSING,
            False,
            1,
        )
        for sim_member in sim_members[:2]:
            _down(sim_member, False)
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=0, **SHORT)
    assert not sim.record.dropped
    sim.check()
    assert sim.run.lost_sequences == 0


@pytest.mark.slow
def test_lost_announcements_without_overlap_are_requested(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_round(0)
        turn = [0]

        def loses(sender: bytes, receiver: bytes) -> bool:
            turn[0] += 1
            return turn[0] % 2 == 0

        sim.network.loses = loses
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=0, **SHORT)
    assert not sim.record.dropped
    assert sim.check() == 24
    assert sim.now_at_end < 100, "what nobody asks for costs a round its whole time"


@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True])
def test_absent_member_without_overlap_finishes_epoch(tmp_path: Path, changed: bool) -> None:
    """The rules of the epoch's start apply, whatever the owner has set since."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1)
        await asyncio.sleep(1)
        _down(sim_members[2], True)
        sim.pause(True)
        run = await sim.until(lambda run: run.state is RunState.PAUSED)
        if changed:
            config = asdict(run.config) | {"overlap": 1}
            sim.chain.send([sim.ix.update(RUN_ID, config=config)], sim.owner)
        _down(sim_members[2], False)
        await sim.until(lambda run: bool(sim_members[2].saw("cooldown")), limit=60)
        sim.pause(False)
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=0, **SHORT)
    late = sim.sim_members[2]
    assert [e["height"] for e in late.saw("applied", epoch=0)] == [0, 1]
    assert late.saw("model")[1]["source"] == "its own replica"
    assert sim.run.config.overlap == changed
    assert sim.check() == 27


@pytest.mark.slow
def test_nonwitnesses_apply_attested_results(tmp_path: Path) -> None:
    """They read on chain which results count, and fetch what they lack."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await sim.until_round(1)
        sim.network.cut(sim_members[0].id, sim_members[3].id)
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=0, witness_nodes=1, **SHORT)
    assert sim.check(dropped=sim.sim_members) > 0
    assert sim.run.lost_sequences == 0


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_members_fast_enough_for_one_second_rounds_learn(tmp_path: Path, overlap: int) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for _ in range(3):
            sim.add(0, seconds=0.05)
        await sim.until_finished()

    sim = play(tmp_path, scenario, overlap=overlap, max_round_train_time=1, **SHORT)
    applied = sum(event["results"] for event in sim.sim_members[0].saw("applied"))
    # the chain counts whole seconds, so a round may end before any announcement
    assert applied > 6 * 3 / 2
