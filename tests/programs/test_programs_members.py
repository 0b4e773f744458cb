"""Test joining and leaving: authorization, requirements, the choice of a seat, and what a member
may change when.
"""

from typing import Any

import numpy as np
import pytest
from solders.keypair import Keypair

from aftermath.rules import bitmap
from aftermath.rules.deadlines import HOLDERS_WAIT
from aftermath.rules.state import MemberState, RunState
from programs.harness import AUTHORIZER, World, address, authorization_address, build
from programs.scenario import EVERYONE, SCHEMA, Scenario, member


def test_member_waits_for_next_epoch(run: Scenario) -> None:
    run.join(0, tier=2, weight=7).ok()
    seat = run.members.seats[0]
    assert (seat.signer, seat.p2p) == (bytes(member(0).pubkey()), bytes(member(0).pubkey())[::-1])
    assert (seat.tier, seat.declared, seat.state, seat.pending) == (2, 7, MemberState.IDLE, True)
    assert (run.run.seq, run.run.members_seq) == (5, 1)


def test_waiting_member_may_change_its_terms(run: Scenario) -> None:
    run.join(0, tier=2, weight=7).ok()
    run.join(0, tier=1, weight=9, p2p=b"n" * 32).ok()
    seat = run.members.seats[0]
    assert (seat.tier, seat.declared, seat.p2p, run.members.pending) == (1, 9, b"n" * 32, 1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("SchemaMismatch", {"schema_hash": b"x" * 32}),
        ("TierOutOfRange", {"tier": 3}),
        ("ClientVersionMismatch", {"client_version": "v2"}),
        ("ClientVersionMismatch", {"client_version": ""}),
        ("WeightZero", {"weight": 0}),
        ("P2pKeyZero", {"p2p": bytes(32)}),
    ],
)
def test_join_requirements_are_enforced(world: World, name: str, change: dict[str, Any]) -> None:
    scenario = Scenario(world)
    scenario.create("v1").ok()
    scenario.configure().ok()
    scenario.authorize().ok()
    scenario.join(0, client_version="v1").refused("RunHalted")
    scenario.owner("set_paused", False).ok()
    scenario.join(0, **{"client_version": "v1", **change}).refused(name)
    scenario.join(0, client_version="v1").ok()


def test_taken_peer_key_does_not_exclude_its_owner(run: Scenario) -> None:
    """A peer key is public before it is on chain.

    Its owner proves to peers by a signature that it is its member.
    """
    run.join(1, p2p=b"k" * 32).ok()
    run.join(0, p2p=b"k" * 32).ok()
    assert run.members.seats[0].p2p == run.members.seats[1].p2p == b"k" * 32


def _authorize(
    run: Scenario, grantee: Keypair, scope: bytes, *, active: bool, grantor: Keypair | None = None
) -> Any:
    grantor = grantor or run.grantor
    key = authorization_address(grantor.pubkey(), grantee.pubkey(), scope)
    keys = {"payer": run.world.payer.pubkey(), "grantor": grantor.pubkey(), "authorization": key}
    steps = [build(AUTHORIZER, "create", keys, (grantee.pubkey(), scope))]
    if active:
        steps.append(build(AUTHORIZER, "grantor_update", keys, (True,)))
    run.world.send(*steps, signers=[grantor]).ok()
    return key


def test_permission_comes_only_from_join_authority(world: World) -> None:
    run = Scenario(world)
    run.create().ok()
    run.configure().ok()
    run.owner("set_paused", False).ok()
    run.join(0).refused("UninitializedAccount")
    scope = b"CoordinatorJoinRun"
    inactive = _authorize(run, member(0), scope, active=False)
    foreign = _authorize(run, member(0), scope, active=True, grantor=Keypair())
    other_scope = _authorize(run, member(0), b"SomethingElse", active=True)
    other_user = _authorize(run, member(1), scope, active=True)
    other_run = _authorize(run, member(0), bytes(address("run", "other")), active=True)
    params = {
        "p2p": b"p" * 32,
        "tier": 0,
        "weight": 1,
        "schema_hash": SCHEMA,
        "client_version": "",
        "stateless": False,
    }
    for index in (0, 1):
        run.enroll(index).ok()
    for key in (inactive, foreign, other_scope, other_user, other_run):
        run.by(0, "join_run", params, accounts={"authorization": key}).refused("NotAuthorized")
    run.by(1, "join_run", params, accounts={"authorization": other_user}).ok()
    forged = Keypair().pubkey()
    run.world.put(forged, run.world.data(other_user))  # right bytes, but owned by another program
    run.by(1, "join_run", params, accounts={"authorization": forged}).refused("IllegalOwner")


def test_authorization_admits_to_one_run_of_authority(
    world: World,
) -> None:
    one = Scenario(world, "one")
    two = Scenario(world, "two")
    for run in (one, two):
        run.create().ok()
        run.configure().ok()
        run.owner("set_paused", False).ok()
    for run in (one, two):
        run.enroll(0).ok()
    key = _authorize(one, member(0), bytes(one.accounts["run"]), active=True)
    params = {
        "p2p": b"p" * 32,
        "tier": 0,
        "weight": 1,
        "schema_hash": SCHEMA,
        "client_version": "",
        "stateless": False,
    }
    two.by(0, "join_run", params, accounts={"authorization": key}).refused("NotAuthorized")
    one.by(0, "join_run", params, accounts={"authorization": key}).ok()


def test_delegate_joins_in_grantees_place(world: World) -> None:
    run = Scenario(world)
    run.create().ok()
    run.configure().ok()
    run.owner("set_paused", False).ok()
    run.enroll(0).ok()
    key = _authorize(run, member(7), b"CoordinatorJoinRun", active=True)
    keys = {"payer": world.payer.pubkey(), "grantee": member(7).pubkey(), "authorization": key}
    keys |= {"delegates_sponsor": world.payer.pubkey()}
    params = {
        "p2p": b"p" * 32,
        "tier": 0,
        "weight": 1,
        "schema_hash": SCHEMA,
        "client_version": "",
        "stateless": False,
    }
    run.by(0, "join_run", params, accounts={"authorization": key}).refused("NotAuthorized")
    update = build(AUTHORIZER, "grantee_update", keys, (False, [member(0).pubkey()]))
    world.send(update, signers=[member(7)]).ok()
    run.by(0, "join_run", params, accounts={"authorization": key}).ok()


def _fill(run: Scenario, **fields: Any) -> Any:
    """Let strangers use all 256 seats, idle and not waiting."""
    record = run.world.record("Members", "test")
    seats = record["seats"][0]
    for index in range(256):
        seats[index]["signer"] = bytes(member(1000 + index).pubkey())
        seats[index]["p2p"] = bytes(member(1000 + index).pubkey())
    seats["used"] = 1
    seats["weight"] = 1
    seats["declared"] = 1
    for name, value in fields.items():
        seats[name] = value
    run.world.store("Members", "test", record)
    for index in range(256):
        run.put_membership(1000 + index)
    return record


def test_seats_without_points_are_reused_first(run: Scenario) -> None:
    record = _fill(run, points=5, last_epoch=3)
    record["seats"][0]["points"][9] = 0
    run.world.store("Members", "test", record)
    run.join(0).ok()
    assert run.seat_of(0) == 9


def test_longest_absent_member_loses_its_seat(run: Scenario) -> None:
    record = _fill(run, points=5, last_epoch=3)
    record["seats"][0]["last_epoch"][77] = 2
    state = run.world.record("Run", "test")
    state["finishers"][0] = b"\xff" * 32
    run.world.store("Members", "test", record)
    run.world.store("Run", "test", state)
    run.join(0).ok()
    assert run.seat_of(0) == 77
    evicted = run.membership(1077)
    assert evicted is not None
    assert (evicted.points, run.members.seats[77].points) == (5, 0)
    assert run.run.finishers == 2**256 - 1 - (1 << 77)


def _finished(run: Scenario, seats: bytes, **fields: int) -> None:
    state = run.world.record("Run", "test")
    state["finishers"][0] = seats
    for name, value in fields.items():
        state[name] = value
    run.world.store("Run", "test", state)


def test_seat_of_finisher_is_reused_last(run: Scenario) -> None:
    _fill(run, points=0, last_epoch=3)
    _finished(run, run.names(range(255)))
    run.join(0).ok()
    assert run.seat_of(0) == 255
    run.join(1).ok()
    assert run.seat_of(1) == 0


def test_model_holders_keep_their_seats_while_run_waits(run: Scenario) -> None:
    _fill(run, points=0, last_epoch=3)
    _finished(run, b"\xff" * 32, model_source=1, state_started_at=run.world.now)
    run.world.advance(34)
    run.join(0).refused("MembersFull")
    run.world.advance(1)  # 5 seconds for latecomers and 30 of warm-up
    run.join(0).ok()


@pytest.mark.parametrize(
    ("established", "removed", "taken"), [(3, False, 10), (4, False, 9), (4, True, 10)]
)
def test_three_established_members_keep_their_seats(
    run: Scenario, established: int, removed: bool, taken: int
) -> None:
    """With two left, no epoch could be undone. They keep their seats however long they are away."""
    record = _fill(run, points=5, last_epoch=3)
    record["seats"][0]["last_epoch"][9] = 1
    record["seats"][0]["last_epoch"][10] = 2
    seats = bitmap.from_seats([9, *range(20, 19 + established)])
    record["seats"][0]["pending"][20] = 2 * removed
    record["established"][0] = np.frombuffer(seats.to_bytes(32, "little"), np.uint8)
    run.world.store("Members", "test", record)
    _finished(run, bytes(32), epoch=9)
    run.world.advance(HOLDERS_WAIT)
    run.join(0).ok()
    assert run.seat_of(0) == taken


def test_member_reuses_its_own_seat_first(run: Scenario) -> None:
    record = _fill(run, points=5)
    record["seats"][0]["signer"][200] = bytes(member(0).pubkey())
    run.world.store("Members", "test", record)
    run.join(0).ok()
    assert (run.seat_of(0), run.members.seats[200].points) == (200, 5)


@pytest.mark.parametrize("fields", [{"pending": 1}, {"state": 1}, {"state": 3}])
def test_live_256_members_fill_run(run: Scenario, fields: dict[str, int]) -> None:
    _fill(run, **fields)
    run.join(0).refused("MembersFull")


def test_leave_without_seat_is_refused(run: Scenario) -> None:
    run.by(0, "leave_run").refused("NotAMember")
    run.join(0).ok()
    run.by(0, "leave_run").ok()
    assert run.members.pending == 0
    run.by(0, "leave_run").refused("NotAMember")


def test_leave_in_training_can_be_undone_for_next_epoch(run: Scenario) -> None:
    run.train([0, 1, 2], weight=10)
    run.witness_round()
    run.join(0, weight=99).ok()  # a healthy member only asks for the next epoch
    assert (run.members.seats[0].weight, run.members.seats[0].pending) == (10, True)
    run.by(0, "leave_run").ok()
    seat = run.members.seats[0]
    assert (seat.state, seat.pending, seat.exited_height) == (MemberState.WITHDRAWN, False, 1)
    run.join(0, weight=99, tier=1, p2p=b"z" * 32).ok()
    seat = run.members.seats[0]
    # earlier assignments depend on these fields, so they stay until the epoch ends
    assert (seat.state, seat.pending, seat.weight, seat.tier) == (
        MemberState.WITHDRAWN,
        True,
        10,
        0,
    )


def test_stateless_rejoin_leaves_epoch_and_finishers(run: Scenario) -> None:
    run.train([0, 1, 2])
    state = run.world.record("Run", "test")
    state["finishers"][0] = b"\x07" + bytes(31)
    run.world.store("Run", "test", state)
    run.join(1, stateless=True).ok()
    seat = run.members.seats[1]
    assert (seat.state, seat.pending, run.run.finishers) == (MemberState.RESTARTED, True, 0b101)


def test_warm_up_without_members_is_abandoned_at_once(run: Scenario) -> None:
    run.warm_up([0, 1, 2])
    run.by(0, "leave_run").ok()
    assert run.run.state is RunState.WARMUP
    run.by(1, "leave_run").ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert run.members.pending == 0  # the remaining member has to ask again, because it may be dead
    assert {seat.state for seat in run.members.seats} == {MemberState.IDLE}
    run.join(2).ok()
    assert (run.members.pending, run.run.step, run.run.data_index) == (0b100, 1, 0)


def test_authorization_of_default_key_admits_everyone(run: Scenario) -> None:
    key = authorization_address(run.grantor.pubkey(), EVERYONE)
    keys = {"grantor": run.grantor.pubkey(), "authorization": key}
    run.join(0).ok()
    run.world.send(build(AUTHORIZER, "grantor_update", keys, (False,)), signers=[run.grantor]).ok()
    run.join(1).refused("NotAuthorized")
