"""Test an epoch with 256 members, and the same epoch with a third of them silent."""

import random
from functools import cache

import pytest

from aftermath.rules import assignment, audits, bitmap, committee
from aftermath.rules.run import REDO
from aftermath.rules.state import EstablishedOnly, ExitReason, MemberState, RunState
from programs.audit_cases import audit_of, vote
from programs.harness import Snapshot, World
from programs.scenario import Scenario
from rules import backlog

HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
GOAL = 50_000
LIMIT = 200_000
"""Compute units that an instruction may use if its transaction asks for no others."""


@pytest.fixture
def full_run(world: World) -> Scenario:
    """Return a run in round 0 with 256 members of three tiers and many speeds."""
    world.load(_in_round_0())
    return Scenario(world)


@cache
def _in_round_0() -> Snapshot:
    run = Scenario(World()).start(
        init_min_clients=256, min_clients=100, rounds_per_epoch=3, global_batch_size_start=4096,
        global_batch_size_end=4096, verification_percent=10,
    )  # fmt: skip
    run.owner("set_future_epoch_rates", 2560, 0).ok()
    for index in range(256):
        assert run.join(index, tier=index % 3, weight=1 + index).ok().units <= GOAL
    run.join(256).refused("MembersFull")
    run.world.advance(6)
    assert run.tick().ok().units <= GOAL
    elected = run.draw().elected()
    assert len(elected) == 32
    for index in elected[:22]:
        assert run.by(index, "warmup_witness", run.seat_of(index)).ok().units <= GOAL
    assert run.run.state is RunState.ROUND_TRAIN
    return run.world.snapshot()


def test_epoch_of_256_members_completes(full_run: Scenario) -> None:
    for _ in range(4):
        for index in full_run.elected():
            assert full_run.witness(index).ok().units <= GOAL
    state = full_run.run
    assert (state.state, state.step, state.data_index) == (RunState.COOLDOWN, 4, 3 * 4096)
    assert (state.backlog, state.lost_sequences) == (0, 0)
    members = full_run.members
    for level in range(3):
        assert len(committee.cooldown_electees(state, members, level)) == 32
    for seat in sorted(
        {seat for level in range(3) for seat in committee.cooldown_electees(state, members, level)}
    ):
        levels = committee.levels_to_attest(state, members, seat)
        assert full_run.attest(seat, {level: HASHES[level] for level in levels}).ok().units <= GOAL
    assert full_run.run.levels_attested == 0b111
    checkpoint = {"kind": 1, "repo": "r", "revision": "", "hashes": list(HASHES.values())}
    assert full_run.by(0, "checkpoint", checkpoint).ok().units <= GOAL
    state = full_run.run
    assert (state.state, state.epoch, state.finishers) == (
        RunState.WAITING_FOR_MEMBERS,
        1,
        2**256 - 1,
    )
    assert {seat.points for seat in full_run.members.seats} == {10}
    assert {seat.state for seat in full_run.members.seats} == {MemberState.IDLE}


def test_data_of_silent_members_returns(full_run: Scenario) -> None:
    rng = random.Random(1)
    silent = set(rng.sample(range(256), 85))
    participation = bitmap.from_seats(seat for seat in range(256) if seat not in silent)
    full_run.witness_round()
    first = full_run.run.rounds[0]
    fresh = full_run.run.current.data_index + 4096
    for index in full_run.elected():
        assert full_run.witness(index, participation).ok().units <= GOAL
    state = full_run.run
    shares = assignment.assign(first, full_run.members)
    settled = backlog.settle(backlog.Backlog(), first, shares, participation)
    redo, left = settled.backlog.take(4096)
    assert len(redo) == REDO
    assert state.current.redo == redo
    assert (full_run.backlog, state.backlog, state.lost_sequences) == (
        left.intervals,
        left.waiting,
        0,
    )
    assert state.data_index == fresh + 4096 - state.current.redone
    owed_nothing = bitmap.from_seats(seat for seat, share in shares.items() if share.len == 0)
    assert state.rounds[1].attested == participation | owed_nothing
    missing = [seat for seat in range(256) if not bitmap.contains(state.rounds[1].attested, seat)]
    assert (
        full_run.by(0 if 0 not in missing else 1, "health_check", full_run.names(missing))
        .ok()
        .units
        <= GOAL
    )
    assert full_run.members.mask(MemberState.DROPPED).bit_count() == len(missing)


@pytest.fixture
def audited_run(world: World) -> Scenario:
    """Return a full run of established members in round 2."""
    world.load(_in_round_0())
    run = Scenario(world)
    members = world.record("Members", "test")
    members["established"][0] = members["judges"][0] = members["healthy"][0]
    world.store("Members", "test", members)
    state = world.record("Run", "test")
    state["levels_established"] = 0b111
    state["rounds"]["established"][0][0] = EstablishedOnly.WITNESS
    world.store("Run", "test", state)
    for _ in range(2):
        run.witness_round()
    return run.draw()


def test_case_of_256_members_stays_within_compute_limit(audited_run: Scenario) -> None:
    tiers = {index: audited_run.members.seats[index].tier for index in range(256)}
    drawn = audits.drawn_results(audited_run.run, audited_run.members, 0)
    target = max(drawn, key=tiers.__getitem__)
    audit = audit_of(audited_run, 0, target)
    assert vote(audited_run, audit.auditor, audit).ok().units <= GOAL
    for seat in audit.others[: audit.decisive - 1]:
        assert audited_run.members.seats[target].state is MemberState.HEALTHY
        assert vote(audited_run, seat, audit).ok().units <= GOAL
    assert audited_run.members.seats[target].state is MemberState.EJECTED


@pytest.mark.parametrize("missing", ["none", "an eighth"])
def test_opening_that_closes_round_of_256_members_fits(audited_run: Scenario, missing: str) -> None:
    """The vote comes when the time for witnesses is over, so it closes the round too."""
    run = audited_run
    drawn = audits.drawn_results(run.run, run.members, 0)
    audit = audit_of(run, 0, max(drawn, key=lambda seat: run.members.seats[seat].tier))
    judged = run.run.round(1)
    assert judged is not None
    shares = assignment.assign(judged, run.members)
    delivered = bitmap.from_seats(
        seat for seat, share in shares.items() if missing == "none" or seat % 8 or not share.len
    )
    for index in run.elected()[:-1]:
        run.witness(index, delivered).ok()
    assert run.run.state is RunState.ROUND_WITNESS
    run.world.advance(6)
    outcome = vote(run, audit.auditor, audit).ok()
    assert run.run.current.height == 3
    assert outcome.units <= LIMIT


def test_epoch_whose_256_members_vanish_ends(full_run: Scenario) -> None:
    full_run.witness_round()
    while full_run.run.state is not RunState.WAITING_FOR_MEMBERS:
        full_run.world.advance(31)
        assert full_run.tick().ok().units <= GOAL
    state = full_run.run
    assert (state.exit_reason, [(one.start, one.len) for one in full_run.backlog]) == (
        ExitReason.NO_ATTESTATION,
        [(0, 8192)],
    )


def test_disagreeing_witnesses_are_counted(full_run: Scenario) -> None:
    rng = random.Random(2)
    full_run.witness_round()
    votes = [0] * 256
    for index in full_run.elected():
        participation = sum(1 << seat for seat in range(256) if rng.random() < seat / 256)
        for seat in range(256):
            votes[seat] += participation >> seat & 1
        assert full_run.witness(index, participation).ok().units <= 60_000
    state = full_run.run
    shares = assignment.assign(state.rounds[0], full_run.members)
    expected = bitmap.from_seats(
        seat for seat in range(256) if votes[seat] >= 22 or shares[seat].len == 0
    )
    assert state.rounds[1].attested == expected
    assert 0 < expected.bit_count() < 256


@pytest.mark.parametrize("levels", [3, 8])
@pytest.mark.parametrize("attesting", ["nothing", "half"])
def test_timed_out_cooldown_stays_within_compute_limit(
    world: World, levels: int, attesting: str
) -> None:
    """Before the time is up, nobody attests, or half of each committee does."""
    world.load(_in_cooldown(levels))
    run = Scenario(world, tiers=levels)
    committees = {
        level: committee.cooldown_electees(run.run, run.members, level) for level in range(levels)
    }
    halves = {level: electees[: len(electees) // 2] for level, electees in committees.items()}
    for seat in (
        sorted({seat for half in halves.values() for seat in half}) if attesting == "half" else ()
    ):
        hashes = {
            level: bytes([level + 1]) * 32 for level in range(levels) if seat in halves[level]
        }
        assert run.attest(seat, hashes).ok().units <= GOAL
    run.world.advance(31)
    assert run.tick().ok().units <= GOAL
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert run.run.levels_attested == ((1 << levels) - 1 if attesting == "half" else 0)


@cache
def _in_cooldown(levels: int) -> Snapshot:
    run = Scenario(World(), tiers=levels)
    run.start(init_min_clients=256, min_clients=100, rounds_per_epoch=2, verification_percent=10)
    for index in range(256):
        run.join(index, tier=index % levels, weight=1 + index).ok()
    run.world.advance(6)
    run.tick().ok()
    run.draw().world.advance(31)
    run.tick().ok()
    return run.finish_rounds().world.snapshot()
