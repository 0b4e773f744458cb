"""An always late member costs an epoch about one round's time. An honest slow one costs nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from aftermath.member.round_plan import RoundPlan, plan_round
from aftermath.member.rounds.stragglers import Allowances, StragglerTracker
from aftermath.member.rounds.witness import WitnessDuty
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.sim.virtual_time import run_virtual
from member.dishonest_members import falsify_results, sign, tell_all
from member.result_inbox import ResultInbox, header_of, plan_of, run_at, three_members
from member.short_runs import EITHER_OVERLAP
from rules import builders

LIMIT = 30
ROUNDS = 8


def _late(sim_member: SimMember, seconds: float) -> None:
    """Delay every announcement of a result by this time."""

    async def lie(announcement: object, transport: object) -> None:
        asyncio.get_running_loop().call_later(
            seconds, tell_all, transport, sign(sim_member, announcement)
        )  # type: ignore[arg-type]

    falsify_results(sim_member, lie)


def _rounds(sim_member: SimMember) -> list[float]:
    """Return how long the rounds of the first epoch lasted."""
    begun = [e["t"] for e in sim_member.saw("round", epoch=0) + sim_member.saw("cooldown", epoch=0)]
    return [later - now for now, later in pairwise(begun)]


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_always_late_member_costs_one_round_per_epoch(tmp_path: Path, overlap: int) -> None:
    """It always announces after 78 % of the limit."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        await sim.until(lambda run: run.state is RunState.WARMUP)
        if late:
            _late(sim_members[0], 0.78 * LIMIT)
        await sim.until(lambda run: run.epoch == 1)

    took = []
    for late in (False, True):
        sim = play(
            tmp_path / str(late),
            scenario,
            init_min_clients=4,
            rounds_per_epoch=ROUNDS,
            total_steps=2 * ROUNDS,
            max_round_train_time=LIMIT,
            overlap=overlap,
        )
        took.append(_rounds(sim.sim_members[1]))
        assert sim.check(hostile=sim.sim_members[:1] if late else ()) > 0
        assert sim.run.lost_sequences == 0
    control, attacked = took
    assert median(attacked) < 1.5 * median(control)
    assert sum(seconds > 0.78 * LIMIT for seconds in attacked) <= 2
    assert sum(attacked) < sum(control) + 1.2 * LIMIT, attacked
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} == {
        sim.sim_members[0].wallet
    }


def _late_by_level(sim: SimulatedRun, sim_member: SimMember, seconds: float) -> None:
    """Delay one level of each result, another level every four rounds. The member never
    witnesses.
    """
    transport = sim_member.transport
    chain = sim_member.chain
    assert transport is not None
    assert chain is not None
    honest = transport.publish

    def publish(data: bytes) -> bytes:
        digest = honest(data)
        late = min(sim.run.current.height // 4, 2)
        if len(data) == sim.schema.results.payload_bytes(late):
            transport.retract(digest)
            asyncio.get_running_loop().call_later(seconds, honest, data)
        return digest

    async def witness(*what: object, **more: object) -> None:
        await asyncio.sleep(1e6)

    transport.publish = publish  # type: ignore[method-assign]
    chain.witness = witness  # type: ignore[method-assign]


@pytest.mark.slow
def test_member_late_on_each_level_costs_one_round(tmp_path: Path) -> None:
    """Members that do not hold the level cannot see the delay, but they see that a quorum
    missed it.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        await sim.until_round(0)
        _late_by_level(sim, sim_members[3], 13.0)
        await sim.until(lambda run: run.epoch == 1)

    rules = {"init_min_clients": 4, "min_clients": 2, "rounds_per_epoch": 12, "total_steps": 24}
    sim = play(tmp_path, scenario, **rules, max_round_train_time=15)
    assert sim.check(hostile=sim.sim_members[3:]) > 0
    assert sum(seconds > 0.78 * 15 for seconds in _rounds(sim.sim_members[0])) == 1
    assert {sim.members.seats[seat].signer for _, seat in sim.record.dropped} == {
        sim.sim_members[3].wallet
    }


@pytest.mark.slow
@pytest.mark.parametrize(("times", "rounds"), [(3.0, 6), (4.5, 2)])
def test_honest_member_slow_for_some_rounds_loses_nothing(
    tmp_path: Path, times: float, rounds: int
) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        await sim.until_round(1)
        slow = sim_members[2].compute
        assert slow is not None
        slow._seconds *= times
        await sim.until_round(1 + rounds)
        slow._seconds /= times
        await sim.until(lambda run: run.epoch == 1)

    sim = play(
        tmp_path,
        scenario,
        init_min_clients=4,
        rounds_per_epoch=ROUNDS,
        total_steps=2 * ROUNDS,
        max_round_train_time=LIMIT,
    )
    assert not sim.record.dropped
    assert sim.check() > 0
    assert [e["height"] for e in sim.sim_members[2].saw("trained", epoch=0)] == [*range(ROUNDS)]
    assert {
        e["results"] for sim_member in sim.sim_members for e in sim_member.saw("applied", epoch=0)
    } == {4}


@pytest.mark.slow
def test_overdeclared_speed_is_reported_and_costs_one_epoch(tmp_path: Path) -> None:
    """The next epoch uses the measured speed."""

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 0)]
        await sim.until_round(1)
        assert sim_members[2].compute is not None
        sim_members[2].compute._seconds *= 5
        await sim.until(lambda run: run.epoch == 2)

    rules = {
        "rounds_per_epoch": ROUNDS,
        "total_steps": 3 * ROUNDS,
        "max_round_train_time": LIMIT,
        "warmup_time": 100,
    }
    batch = {"global_batch_size_start": 45, "global_batch_size_end": 45}
    sim = play(tmp_path, scenario, init_min_clients=4, **rules, **batch)
    slow = sim.sim_members[2]
    messages = [e["message"] for e in slow.saw("warning") if "for its share" in e["message"]]
    assert len(messages) == 1
    assert "the others waited 30 s for its results in this epoch and no longer wait" in messages[0]
    assert [epoch for epoch, _ in sim.record.dropped] == [0]
    assert [e["height"] for e in slow.saw("trained", epoch=1)] == [*range(ROUNDS)]
    assert sim.check(dropped=[slow]) > 0


# --- one witness's account ------------------------------------------------------------------------


def _plan(weights: tuple[int, ...] = (3, 3, 3), batch: int = 9) -> RoundPlan:
    seats = {seat: builders.seat(seat, weight=weight) for seat, weight in enumerate(weights)}
    header = builders.header(0b111, height=4, step=5, batch=batch, seed=7, data_index=100)
    return plan_round("test", 2, header, builders.members(seats))


def _waits(late: StragglerTracker, missing: set[int], *times: float) -> list[bool]:
    """Return, for each time, whether the witness waits for all missing members."""
    due = frozenset(range(3))
    out = frozenset(missing)
    return [late.waited_for(due, due - out, out, time) == out for time in times]


def test_lateness_beyond_grace_uses_allowance() -> None:
    allowances = Allowances(20.0)
    plan = _plan()
    first = StragglerTracker(allowances, plan, 100.0)
    assert _waits(first, {2}, 104.0, 112.0) == [True, True]
    assert _waits(first, set(), 112.0) == [True]
    assert not allowances.used_up(2)
    second = StragglerTracker(allowances, plan, 200.0)
    assert _waits(second, {2}, 204.0, 212.1, 223.9, 224.1) == [True, True, True, False]
    third = StragglerTracker(allowances, plan, 300.0)
    assert _waits(third, {2}, 304.0) == [False]
    assert _waits(third, set(), 305.0) == [True]
    fourth = StragglerTracker(allowances, plan, 400.0)
    assert _waits(fourth, {2}, 404.0, 411.9, 412.1) == [True, True, False], "it was in time again"


def test_left_out_member_is_on_time_after_one_timely_round() -> None:
    allowances = Allowances(20.0)
    plan = _plan()
    first = StragglerTracker(allowances, plan, 100.0)
    assert _waits(first, {2}, 104.0, 112.0) == [True, True]
    first.round_closed(frozenset({2}), 124.0)
    second = StragglerTracker(allowances, plan, 200.0)
    assert _waits(second, {2}, 203.9) == [False]
    assert _waits(second, set(), 204.0) == [True]
    second.round_closed(frozenset(), 204.0)
    third = StragglerTracker(allowances, plan, 300.0)
    assert _waits(third, {2}, 304.0, 311.9) == [True, True]


def test_key_lateness_is_charged_once() -> None:
    allowances = Allowances(20.0)
    everybody = frozenset(range(3))
    late = StragglerTracker(allowances, _plan(), 0.0)
    assert _waits(late, set(), 3.0) == [True]
    assert late.waited_for_keys(frozenset({2}), 10.0) == {2}
    late.round_closed(everybody - {0, 1}, 13.0)
    assert not allowances.used_up(2)
    allowances.use(2, 10.0)
    assert allowances.used_up(2)


@pytest.mark.parametrize(
    ("attested", "next_height", "left_out"),
    [
        (0b011, 5, {2}),
        (0b111, 5, set()),
        (0b001, 5, set()),  # one of three is not a quorum
        (0b011, 6, set()),  # the member did not see the round end, so the ring is no evidence
    ],
)
def test_next_duty_counts_members_left_out_by_quorum(
    attested: int, next_height: int, left_out: set[int]
) -> None:
    async def scenario() -> Allowances:
        inbox = ResultInbox()
        allowances = Allowances(20.0)
        inbox.results.open(plan_of(4))
        # without the duties that close a round
        parts: dict[str, Any] = {"reveals": None, "allowances": allowances, "seat": 0}
        running = replace(run_at(4), state=RunState.ROUND_WITNESS, seq=1)
        await inbox.feed.put(builders.view(running, three_members()))
        before = WitnessDuty(inbox.ports, inbox.results, plan=plan_of(4), judged=4, **parts)
        closed = replace(header_of(4), attested=attested)
        rounds = (closed, header_of(5), header_of(6), builders.header(0))
        over = replace(running, rounds=rounds, head=next_height - 4, seq=2)
        await inbox.feed.put(builders.view(over, three_members()))
        WitnessDuty(
            inbox.ports,
            inbox.results,
            plan=plan_of(next_height),
            judged=next_height,
            previous=before,
            **parts,
        )
        return allowances

    assert run_virtual(scenario()).left_out == left_out


def test_stragglers_before_two_thirds_delivered_are_awaited() -> None:
    few = StragglerTracker(Allowances(20.0), _plan(), 0.0)
    assert _waits(few, {1, 2}, 4.0, 1000.0) == [True, True]
    light = StragglerTracker(Allowances(20.0), _plan((3, 3, 4)), 0.0)
    assert _waits(light, {2}, 4.0, 1000.0) == [True, True]


@pytest.mark.parametrize(
    ("weights", "batch", "seat", "until"),
    [
        ((3, 3, 3), 9, 2, 30.0),
        ((8, 8, 2), 9, 2, 60.0),
        ((8, 7, 3), 18, 2, 60.0),
        ((5, 5, 5), 4, 1, 35.0),
        ((60_000, 1, 60_000), 16, 1, 100.0),
    ],
)
def test_slow_machine_and_large_share_get_more_time(
    weights: tuple[int, ...], batch: int, seat: int, until: float
) -> None:
    plan = _plan(weights, batch)
    allowances = Allowances(1.0)
    late = StragglerTracker(allowances, plan, 0.0)
    assert _waits(late, {seat}, 10.0, until - 0.1, until + 0.1) == [True, True, False]
