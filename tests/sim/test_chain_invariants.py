"""Each invariant detects its violation. The simulated network has the real guarantees."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aftermath.p2p.transport import BlobRejected, BlobUnavailable, PeerUnreachable
from aftermath.rules.audits import Case
from aftermath.rules.run import Interval
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.chain_invariants import ChainRecord, InvariantBroken
from aftermath.sim.sim_transport import SimNetwork
from aftermath.sim.virtual_time import run_virtual
from rules import builders

WAITING = [Interval(18, 2)]
GOOD = [(0, 0, 1, [[0, 9]]), (0, 1, 2, [[9, 18]])]


def _record(**run: Any) -> ChainRecord:
    values = {"data_index": 20} | run
    record = ChainRecord({(0, 0): [[0, 9]], (0, 1): [[9, 18]]}, {(0, 0): 1, (0, 1): 2})
    record.note(builders.run(RunState.WAITING_FOR_MEMBERS, **values), builders.members({}))
    return record


def test_invariants_of_run_in_order_hold() -> None:
    _record().check_coverage(WAITING)
    _record().check_member("m", GOOD, [0])


@pytest.mark.parametrize(
    ("changed", "waiting"),
    [({}, []), ({"data_index": 21}, WAITING), ({}, [Interval(17, 3)]), ({"lost_sequences": 2}, [])],
)
def test_lost_or_repeated_sequences_break_invariant(
    changed: dict[str, Any], waiting: list[Interval]
) -> None:
    with pytest.raises(InvariantBroken):
        _record(**changed).check_coverage(waiting)


def test_sequences_assigned_again_after_rewind_count_once() -> None:
    record = _record(step=3)
    record.note(
        builders.run(RunState.WAITING_FOR_MEMBERS, step=2, data_index=12), builders.members({})
    )
    record.check_coverage([])
    record.settled[1, 0] = [[12, 20]]
    record.note(
        builders.run(RunState.WAITING_FOR_MEMBERS, step=3, data_index=20), builders.members({})
    )
    record.check_coverage([])
    record.settled[1, 1] = [[20, 24]]
    record.note(
        builders.run(RunState.WAITING_FOR_MEMBERS, step=2, data_index=16), builders.members({})
    )
    record.settled[2, 0] = [[16, 24]]
    record.note(
        builders.run(RunState.WAITING_FOR_MEMBERS, step=3, data_index=24), builders.members({})
    )
    record.check_coverage([])  # an earlier rewind that went further back does not count again
    record.settled[2, 1] = [[19, 20]]
    with pytest.raises(InvariantBroken, match="sequence 19 was trained twice"):
        record.check_coverage([])


VOID = Case(
    seed=1,
    height=1,
    opened=2,
    target=2,
    auditor=0,
    jury=0b1011,
    mismatches=0b11,
    matches=0,
    intervals=(Interval(12, 3),),
)


def _decided(loser: int, used_backlog: int = 0) -> ChainRecord:
    """Return a record in which a jury has ejected a member after a case about round 1."""
    backlog = [Interval(100 + 2 * number, 1) for number in range(used_backlog)]
    record = _record()
    healthy = builders.members({number: builders.seat(number) for number in range(4)})
    run = builders.run(RunState.ROUND_TRAIN, data_index=18)
    record.note(run, healthy, [VOID], backlog)
    ejected = {loser: builders.seat(loser, state=MemberState.EJECTED)}
    seats = {number: builders.seat(number) for number in range(4)}
    record.note(run, builders.members(seats | ejected), [], backlog)
    return record


def test_void_sequences_are_trained_again() -> None:
    record = _decided(loser=2)
    assert record.ejected == [(0, 2)]
    record.check_coverage([Interval(12, 3)])
    with pytest.raises(InvariantBroken, match="15 found"):
        record.check_coverage([])
    record.settled[0, 2] = [[12, 15]]
    record.check_coverage([])
    record.void[0, 2] = {40}
    with pytest.raises(InvariantBroken, match="void sequences"):
        record.check_coverage([])


@pytest.mark.parametrize(("loser", "used_backlog"), [(0, 0), (2, 86)])
def test_acquitted_results_and_those_without_room_count(loser: int, used_backlog: int) -> None:
    record = _decided(loser, used_backlog)
    record.check_coverage([])
    with pytest.raises(InvariantBroken, match="trained and waits too"):
        record.check_coverage([Interval(12, 3)])


@pytest.mark.parametrize(
    "applied",
    [
        GOOD[1:],
        GOOD[:1],
        [GOOD[0], GOOD[0], GOOD[1]],
        [(0, 0, 2, [[0, 9]]), GOOD[1]],
        [(0, 0, 1, [[0, 8]]), GOOD[1]],
        [*GOOD, (0, 2, 3, [])],
    ],
)
def test_skipped_repeated_or_invented_step_breaks_invariant(applied: list[Any]) -> None:
    with pytest.raises(InvariantBroken):
        _record().check_member("m", applied, [0])


def _pair() -> Any:
    network = SimNetwork()
    one = network.open(b"1" * 32)
    other = network.open(b"2" * 32)
    for node in (one, other):
        node.set_members([one.node_id, other.node_id])
    return network, one, other


def test_sim_announcements_arrive_once_and_again_after_cut() -> None:
    async def story() -> list[bytes]:
        network, one, other = _pair()
        await one.announce(b"a")
        await one.announce(b"a")
        network.cut(one.node_id, other.node_id)
        assert other.reachable() == frozenset()
        await one.announce(b"b")
        await asyncio.sleep(1)
        network.heal()
        await asyncio.sleep(1)
        network.crash(other.node_id)
        return [heard.data async for heard in other.announcements()]

    assert run_virtual(story()) in ([b"a", b"b"], [b"b", b"a"])


def test_sim_blob_equals_its_digest_or_is_missing() -> None:
    async def story() -> None:
        network, one, other = _pair()
        digest = other.publish(b"payload")
        assert await one.fetch(digest, 7, [other.node_id], 5) == b"payload"
        with pytest.raises(BlobRejected):
            await one.fetch(digest, 6, [other.node_id], 5)
        other.forge(digest, b"forgery")
        with pytest.raises(BlobRejected):
            await one.fetch(digest, 7, [other.node_id], 5)
        other.retract(digest)
        with pytest.raises(BlobUnavailable):
            await one.fetch(digest, 7, [other.node_id], 5)
        network.crash(other.node_id)
        with pytest.raises(PeerUnreachable):
            await one.request(other.node_id, "topic", b"", 10, 5)

    run_virtual(story())


def test_sim_member_not_on_list_is_unreachable() -> None:
    async def story() -> None:
        _, one, other = _pair()
        other.set_members([])
        assert one.reachable() == frozenset()

    run_virtual(story())


def test_ejection_that_ends_epoch_voids_result() -> None:
    record = _record()
    seats = {number: builders.seat(number) for number in range(4)}
    record.note(builders.run(RunState.COOLDOWN, data_index=18), builders.members(seats), [VOID])
    idle = {number: builders.seat(number, state=MemberState.IDLE) for number in range(4)}
    ended = builders.run(RunState.WAITING_FOR_MEMBERS, epoch=1, data_index=18)
    record.note(ended, builders.members(idle, forfeited=0b100))
    assert record.ejected == [(0, 2)]
    record.check_coverage([Interval(12, 3)])


def test_history_records_drop_with_its_epoch() -> None:
    record = _record()
    healthy = builders.members({3: builders.seat(3)})
    run = builders.run(RunState.ROUND_TRAIN, epoch=4)
    record.note(run, healthy)
    dropped = replace(healthy.seats[3], state=healthy.seats[3].state.__class__.DROPPED)
    record.note(run, builders.members({3: dropped}))
    assert record.dropped == [(4, 3)]
