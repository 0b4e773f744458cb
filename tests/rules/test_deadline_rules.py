"""Test when a tick is due and who sends it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules import bitmap, deadlines
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.state import EstablishedOnly, MemberState, ModelSource, RunState
from rules.builders import config, header, members, model, run, seat

TIMES = config(
    warmup_time=60,
    cooldown_time=20,
    max_round_train_time=30,
    round_witness_time=2,
    waiting_for_members_extra_time=5,
    init_min_clients=2,
)


@pytest.mark.parametrize(
    ("state", "wait"),
    [
        (RunState.WAITING_FOR_MEMBERS, 5),
        (RunState.WARMUP, 60),
        (RunState.ROUND_TRAIN, 30),
        (RunState.ROUND_WITNESS, 2),
        (RunState.COOLDOWN, 20),
    ],
)
def test_deadline_of_each_state_is_its_own_time(state: RunState, wait: int) -> None:
    assert deadlines.next_deadline(run(state, config=TIMES, state_started_at=1000)) == 1000 + wait


@pytest.mark.parametrize(
    ("state", "drawn_by"),
    [(RunState.WARMUP, 1), (RunState.ROUND_TRAIN, 30), (RunState.COOLDOWN, 20)],
)
def test_deadline_for_undrawn_seed_precedes_end_of_state(state: RunState, drawn_by: int) -> None:
    """A warm-up's witnesses wait for the seed. An attestation usually draws a round's seed."""
    waits = run(state, config=TIMES, state_started_at=1000, seed_slot=8)
    assert deadlines.next_deadline(waits) == 1000 + drawn_by
    long = replace(waits, config=replace(TIMES, max_round_train_time=3000, warmup_time=3000))
    assert deadlines.next_deadline(long) == 1000 + (
        60 if state is RunState.ROUND_TRAIN else drawn_by
    )


@pytest.mark.parametrize(
    ("least", "attestations", "wait"), [(7, 1, 30), (7, 2, 7), (1, 2, 1), (0, 1, 30), (0, 2, 0)]
)
def test_round_with_quorum_waits_for_min_round_time(
    least: int, attestations: int, wait: int
) -> None:
    times = replace(TIMES, min_round_time=least)
    rounds = (header(0b111, attestations=attestations),)
    trains = run(RunState.ROUND_TRAIN, config=times, rounds=rounds, state_started_at=1000)
    assert deadlines.next_deadline(trains) == 1000 + wait


@pytest.mark.parametrize(
    ("state", "attestations", "draining", "now", "end"),
    [
        (RunState.ROUND_TRAIN, 0, 0, 1010, 1032),
        (RunState.ROUND_TRAIN, 0, 0, 1100, 1102),  # nobody ticked
        (RunState.ROUND_TRAIN, 1, 0, 1010, 1010 + 32),  # another round begins
        (RunState.ROUND_TRAIN, 1, 0, 1100, 1100 + 32),
        (RunState.ROUND_TRAIN, 1, 1, 1100, 1100),
        (RunState.ROUND_TRAIN, 0, 2, 1100, 1102 + 32),  # the second drain round begins
        (RunState.ROUND_WITNESS, 0, 0, 1001, 1002),
        (RunState.ROUND_WITNESS, 0, 0, 1100, 1100),
        (RunState.ROUND_WITNESS, 1, 0, 1100, 1100 + 32),
    ],
)
def test_rounds_without_attestations_end_in_time(
    state: RunState, attestations: int, draining: int, now: int, end: int
) -> None:
    lone = run(
        state,
        config=TIMES,
        rounds=(header(0b1, attestations=attestations),),
        state_started_at=1000,
        draining=draining,
    )
    assert deadlines.rounds_end(lone, now) == end


@pytest.mark.parametrize("state", [RunState.UNINITIALIZED, RunState.PAUSED, RunState.FINISHED])
def test_halted_run_has_no_deadline(state: RunState) -> None:
    assert deadlines.next_deadline(run(state, config=TIMES)) is None


def test_deadline_with_too_few_members_is_none() -> None:
    waiting = run(RunState.WAITING_FOR_MEMBERS, config=TIMES, state_started_at=1000)
    one = {0: seat(0, pending=True), 1: seat(1)}
    assert deadlines.next_deadline(waiting, members(one)) is None
    assert deadlines.next_deadline(waiting, members(one | {1: seat(1, pending=True)})) == 1005


@pytest.mark.parametrize(
    ("finishers", "differing", "wait"),
    [
        (0b0111, (0,), 65),  # the checkpoint lacks level 0, whose only holder is away
        (0b0111, (), 5),
        (0b0111, (1,), 5),  # seat 1 holds the level
        (0b1111, (0,), 5),  # seat 3 holds the level
        (0b0110, (0,), 5),  # no finisher holds it
        (0b0001, (2,), None),  # no finisher waits: only a finisher or the owner can continue
    ],
)
def test_epoch_waits_for_absent_sole_holders(
    finishers: int, differing: tuple[int, ...], wait: int | None
) -> None:
    table = members(
        {i: seat(i, tier=(0, 1, 2, 0)[i], pending=i > 0, state=MemberState.IDLE) for i in range(4)}
    )
    waiting = run(
        RunState.WAITING_FOR_MEMBERS,
        config=TIMES,
        state_started_at=1000,
        model_source=ModelSource.PEERS,
        finishers=finishers,
        level_hashes=tuple(bytes([1 + (level in differing)]) * 32 for level in range(3)),
        levels_attested=0b111,
    )
    durable = SimpleNamespace(checkpoint_hashes=(b"\1" * 32,) * 3)
    expected = None if wait is None else 1000 + wait
    assert deadlines.next_deadline(waiting, table, durable) == expected  # type: ignore[arg-type]
    # All members begin an unattested level from the checkpoint, so nobody waits for its holders.
    unattested = replace(waiting, levels_attested=0b111 & ~bitmap.from_seats(differing))
    assert deadlines.next_deadline(unattested, table, durable) == 1005  # type: ignore[arg-type]


@given(
    st.sampled_from(RunState), st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 2**30)
)
def test_deadlines_lie_in_future_and_move_with_start(
    state: RunState, started: int, later: int, wait: int
) -> None:
    times = config(
        warmup_time=wait, cooldown_time=wait, max_round_train_time=wait, round_witness_time=wait
    )
    before = deadlines.next_deadline(run(state, config=times, state_started_at=started))
    after = deadlines.next_deadline(run(state, config=times, state_started_at=started + later))
    if state.halted:
        assert before is after is None
    else:
        assert before is not None
        assert before > started
        assert after == before + later


@given(
    st.sets(st.integers(0, 255), min_size=1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    st.data(),
)
def test_tick_order_has_each_healthy_member_once(
    present: set[int], seed: int, started: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(present))))
    table = members(
        {
            i: seat(i, state=MemberState.DROPPED if i in gone else MemberState.HEALTHY)
            for i in present
        }
    )
    state = run(
        RunState.ROUND_TRAIN,
        rounds=(header(bitmap.from_seats(present), seed=seed),),
        state_started_at=started,
    )
    assert sorted(deadlines.tick_order(state, table)) == sorted(present - gone)
    assert deadlines.tick_order(state, table) == deadlines.tick_order(state, table)


def test_waiting_members_may_tick_epoch_to_start() -> None:
    table = members(
        {3: seat(3, state=MemberState.IDLE, pending=True), 4: seat(4, state=MemberState.IDLE)}
    )
    assert deadlines.tick_order(run(RunState.WAITING_FOR_MEMBERS), table) == [3]


_EPOCH = {
    "step": 5,
    "start_step": 4,
    "state_started_at": 1000,
    "config": TIMES,
    "levels": 3,
    "rounds": (header(0b11100),),
}
_LAST = {2: seat(2, tier=1), 3: seat(3, state=MemberState.WITHDRAWN, pending=True)}


@pytest.mark.parametrize(
    ("state", "wait"),
    [(RunState.ROUND_TRAIN, 30), (RunState.ROUND_WITNESS, 2), (RunState.COOLDOWN, 20)],
)
def test_members_wait_a_day_for_last_member_of_epoch(state: RunState, wait: int) -> None:
    """The draw of a seed, which is due earlier, does not end the epoch."""
    slow = replace(TIMES, max_round_train_time=300) if state is RunState.ROUND_TRAIN else TIMES
    waits = run(state, **_EPOCH | {"config": slow, "seed_slot": 8})
    due = 1300 if state is RunState.ROUND_TRAIN else 1000 + wait
    table = members(_LAST)
    assert deadlines.last_member(waits, table, model()) == 2
    wait_for_last = deadlines.wait_for_last_member(waits, table, model())
    assert wait_for_last == (2, due, due + deadlines.HOLDERS_WAIT)
    times = (due - 1, due, due + deadlines.HOLDERS_WAIT - 1, due + deadlines.HOLDERS_WAIT)
    assert [wait_for_last.is_running(now) for now in times] == [False, True, True, False]


@pytest.mark.parametrize(
    ("changes", "table", "model_"),
    [
        ({"state": RunState.WARMUP}, members(_LAST), model()),
        ({"state": RunState.WAITING_FOR_MEMBERS}, members(_LAST), model()),
        ({"start_step": 5}, members(_LAST), model()),
        ({}, members(_LAST), model(checkpoint_step=5)),
        ({}, members(_LAST | {4: seat(4)}), model()),
        ({}, members({3: seat(3, state=MemberState.WITHDRAWN)}), model()),
        ({}, members(_LAST, proven=0b1000), model()),
        ({}, members(_LAST | {4: seat(4, state=MemberState.WITHDRAWN)}), model()),
        ({"levels_established": 0b111}, members(_LAST), model()),
    ],
    ids=[
        "warm-up",
        "between epochs",
        "no step",
        "saved",
        "another member",
        "no member",
        "unproven newcomer",
        "a third of the committee",
        "newcomer to known levels",
    ],
)
def test_last_member_is_none_unless_it_alone_can_save_steps(
    changes: dict[str, Any], table: Members, model_: Model
) -> None:
    waits = replace(run(RunState.COOLDOWN, **_EPOCH), **changes)
    assert deadlines.last_member(waits, table, model_) is None
    assert deadlines.wait_for_last_member(waits, table, model_) is None


def test_judge_without_delivery_can_be_last_member() -> None:
    """It may attest although it delivered nothing in this epoch."""
    waits = run(RunState.ROUND_TRAIN, **_EPOCH)
    table = members(_LAST, proven=0, judges=0b100, established=0b100)
    assert deadlines.last_member(waits, table, model()) == 2


def _key(number: int) -> bytes:
    return bytes([number]) * 32


@pytest.mark.parametrize(
    ("changes", "tiers", "reachable", "last"),
    [
        ({}, {2: 0, 3: 0}, {2, 3}, 3),
        ({}, {2: 0, 3: 1}, {2, 3}, 2),
        ({}, {2: 0, 3: 0}, {2}, None),
        ({}, {2: 0}, {2}, None),
        ({}, {2: 0, 3: 0, 4: 0}, {2, 3, 4}, None),
        ({"state": RunState.WARMUP}, {2: 0, 3: 0}, {2, 3}, None),
    ],
    ids=["highest seat", "smallest tier", "other killed", "alone", "three members", "warm-up"],
)
def test_one_of_two_members_that_stop_together_leaves_last(
    changes: dict[str, Any], tiers: dict[int, int], reachable: set[int], last: int | None
) -> None:
    """`reachable`: the seats of peers that answer. A member that was killed does not answer, so the
    other one is the last member already.
    """
    stops = replace(run(RunState.ROUND_TRAIN, **_EPOCH), **changes)
    seats = {number: seat(number, tier=t, p2p=_key(number)) for number, t in tiers.items()}
    table = members(seats, proven=0)  # no member leaves before the cooldown here
    keys = {_key(number) for number in reachable}
    waiting = [
        number
        for number in sorted(reachable)
        if deadlines.becomes_last_member(stops, table, number, keys)
    ]
    assert waiting == ([] if last is None else [last])


def test_tick_fee_is_shared_over_time() -> None:
    table = members({index: seat(index) for index in range(4)})
    first = [
        deadlines.tick_order(
            run(RunState.ROUND_TRAIN, rounds=(header(0b1111),), state_started_at=now), table
        )[0]
        for now in range(400)
    ]
    assert all(60 <= first.count(index) <= 140 for index in range(4))


def test_tick_delay_grows_with_rank_up_to_bound() -> None:
    delays = [deadlines.tick_delay(rank) for rank in range(256)]
    assert delays[0] == 0.0
    assert delays == sorted(delays)
    assert delays[1] == deadlines.TICK_STEP
    assert delays[-1] <= 30.0


@pytest.mark.parametrize(("established", "rounds_left"), [(0, 1), (1, 2)])
def test_audited_epoch_may_end_with_two_more_rounds(established: int, rounds_left: int) -> None:
    attested = header(0b1, attestations=1, established=EstablishedOnly(established))
    times = replace(TIMES, verification_percent=5)
    lone = run(RunState.ROUND_WITNESS, config=times, rounds=(attested,), state_started_at=1000)
    assert deadlines.rounds_end(lone, 1100) == 1100 + rounds_left * 32
