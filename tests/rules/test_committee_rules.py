"""Test the seeded shuffle and what depends on it: quorums, witnesses and level committees."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules import bitmap, committee
from aftermath.rules.members import Members
from aftermath.rules.state import EstablishedOnly, MemberState, RunState
from rules import program_rules
from rules.builders import header, members, run, seat

U64 = st.integers(0, 2**64 - 1)
ROSTERS = st.integers(1, 2**256 - 1)


@given(U64, st.integers(0, 256))
def test_shuffle_is_a_permutation(state: int, n: int) -> None:
    assert sorted(committee.shuffle(state, n)) == list(range(n))


def test_shuffle_follows_written_recurrence() -> None:
    """Three swaps computed by hand with the MMIX constants, from state 42."""
    a = 6364136223846793005
    c = 1442695040888963407
    state = 42
    expected = [0, 1, 2, 3]
    for i in (0, 1, 2):
        state = (a * state + c) % 2**64
        j = i + (state // 2**32) % (4 - i)
        expected[i], expected[j] = expected[j], expected[i]
    assert committee.shuffle(42, 4) == expected


def test_purpose_state_is_hash_of_seed_and_name() -> None:
    digest = hashlib.sha256((12345).to_bytes(8, "little") + b"witness").digest()
    assert committee.purpose_state(12345, committee.WITNESS) == int.from_bytes(digest[:8], "little")


def test_order_puts_every_member_first_equally_often() -> None:
    """Chi-square over 4,000 seeds and 16 members: 15 degrees of freedom, 99.99 % below 45."""
    counts = [0] * 16
    for seed in range(4000):
        counts[committee.order(seed, committee.WITNESS, 16)[0]] += 1
    assert sum((count - 250) ** 2 / 250 for count in counts) < 45


@given(st.integers(1, 32))
def test_quorum_is_smallest_two_thirds_and_overlaps(elected: int) -> None:
    quorum = committee.quorum(elected)
    assert Fraction(quorum, elected) >= Fraction(2, 3)
    assert Fraction(quorum - 1, elected) < Fraction(2, 3)
    assert 2 * quorum > elected


def test_quorum_is_at_least_one() -> None:
    assert [committee.quorum(n) for n in (0, 1, 2, 3, 4, 32)] == [1, 1, 2, 2, 3, 22]


@given(U64, ROSTERS, st.integers(0, 32))
def test_witnesses_are_distinct_and_as_many_as_elected(
    seed: int, roster: int, witness_nodes: int
) -> None:
    clients = roster.bit_count()
    round_ = header(roster, seed=seed, elected=program_rules.elected_count(witness_nodes, clients))
    elected = committee.witnesses(round_, _newcomers(roster))
    assert len(set(elected)) == len(elected) == min(witness_nodes or 32, clients, 32)
    assert all(bitmap.contains(roster, seat) for seat in elected)
    positions = {
        seat: place for place, seat in enumerate(committee.ordered(round_, committee.WITNESS))
    }
    assert [positions[seat] for seat in elected] == list(range(len(elected)))


@given(U64, ROSTERS, st.integers(1, 32), st.data())
def test_next_member_replaces_leaving_witness_without_vote(
    seed: int, roster: int, witness_nodes: int, data: st.DataObject
) -> None:
    """Members attest and leave in any order. Votes never exceed seats, and no seat stays empty
    needlessly.
    """
    healthy = roster
    attested = 0
    round_ = header(
        roster, seed=seed, elected=program_rules.elected_count(witness_nodes, roster.bit_count())
    )
    for _ in range(20):
        seated = committee.witnesses(replace(round_, attested=attested), _newcomers(healthy))
        still = [seat for seat in seated if not bitmap.contains(attested, seat)]
        assert len(seated) == min(round_.elected, (attested | healthy).bit_count())
        assert all(bitmap.contains(healthy, seat) for seat in still)
        assert set(bitmap.seats(attested)) <= set(seated)
        if still and data.draw(st.booleans()):
            attested |= 1 << data.draw(st.sampled_from(still))
        elif healthy:
            healthy &= ~(1 << data.draw(st.sampled_from(list(bitmap.seats(healthy)))))


@given(U64, ROSTERS, ROSTERS)
def test_leaving_member_does_not_change_order_of_others(seed: int, began: int, stayed: int) -> None:
    """Remaining members keep their relative order in every purpose."""
    whole = header(began, seed=seed)
    left = header(began & stayed, began=began, seed=seed)
    in_order = [
        seat
        for seat in committee.ordered(whole, committee.WITNESS)
        if bitmap.contains(stayed, seat)
    ]
    assert list(committee.witnesses(left, _newcomers(began))) == in_order[: left.elected]


def _newcomers(healthy: int) -> Members:
    return members({}, healthy=healthy)


def test_member_outside_roster_is_not_a_witness() -> None:
    round_ = header(0b1011)
    assert set(committee.witnesses(round_, _newcomers(2**256 - 1))) == {0, 1, 3}


@given(U64, ROSTERS, ROSTERS, ROSTERS, st.booleans())
def test_newcomers_never_witness_established_round(
    seed: int, roster: int, known: int, healthy: int, alone: bool
) -> None:
    """Only established members witness an established round, even if none is left."""
    judges = roster & known
    round_ = header(roster, seed=seed, elected=32, established=EstablishedOnly(alone))
    table = members({}, healthy=healthy, judges=judges)
    among = roster & healthy & (judges if alone else roster)
    chosen = committee.witnesses(round_, table)
    assert set(chosen) <= set(bitmap.seats(among))
    assert len(chosen) == min(among.bit_count(), 32)


@given(U64, st.sets(st.integers(0, 255), min_size=1, max_size=60), st.integers(1, 8), st.data())
def test_level_committee_holds_level_and_has_delivered(
    seed: int, present: set[int], levels: int, data: st.DataObject
) -> None:
    """Every committee member delivered in this epoch or before.

    Newcomers have no place if an established member delivered and stayed.
    """
    tiers = {index: data.draw(st.integers(0, levels - 1)) for index in present}
    gone = data.draw(st.sets(st.sampled_from(sorted(present))))
    proven = data.draw(st.sets(st.sampled_from(sorted(present))))
    before = data.draw(st.sets(st.sampled_from(sorted(present))))
    judges = {index for index in before if data.draw(st.booleans())}
    exits = {index: data.draw(st.integers(0, 2)) for index in gone}
    table = members(
        {
            index: seat(
                index,
                tier=tiers[index],
                state=MemberState.DROPPED if index in gone else MemberState.HEALTHY,
                exited_height=exits.get(index, 0),
            )
            for index in present
        },
        proven=bitmap.from_seats(proven),
        established=bitmap.from_seats(before),
        judges=bitmap.from_seats(judges),
    )
    cooldown = run(
        RunState.COOLDOWN, rounds=(header(bitmap.from_seats(present), seed=seed),), levels=levels
    )
    # No member attests a level whose established holder was dropped, if three or more are
    # established.
    withheld = levels
    if len(before) >= committee.MIN_ESTABLISHED:
        withheld = min((tiers[index] for index in judges & gone), default=levels)
    for level in range(levels):
        delivered = proven | {index for index in before if exits.get(index, 1)}
        holders = {index for index in delivered if tiers[index] <= level}
        if any(index not in gone or exits[index] > 0 for index in judges & proven & holders):
            holders &= judges
        elif level >= withheld:
            holders = set()
        electees = committee.cooldown_electees(cooldown, table, level)
        assert set(electees) <= holders
        assert len(electees) == min(len(holders), 32)
    for index in present:
        owed = committee.levels_to_attest(cooldown, table, index)
        assert list(owed) == sorted(owed)
        assert index in proven or not owed
        assert all(index in committee.cooldown_electees(cooldown, table, level) for level in owed)


def test_bitmap_round_trips() -> None:
    mask = bitmap.from_seats([3, 8, 255])
    data = bitmap.to_bytes(mask)
    assert (data[0], data[1], data[31]) == (0b1000, 1, 0x80)
    assert bitmap.from_bytes(data) == mask
    assert list(bitmap.seats(mask)) == [3, 8, 255]


@pytest.mark.parametrize("mask", [-1, 1 << 256])
def test_bitmap_of_invalid_seats_is_refused(mask: int) -> None:
    with pytest.raises(ValueError, match="seats 0 to 255 only"):
        bitmap.to_bytes(mask)


@pytest.mark.parametrize("seat", [-1, 256])
def test_invalid_seat_is_refused(seat: int) -> None:
    with pytest.raises(ValueError, match=f"member seat {seat} is outside 0 to 255$"):
        bitmap.from_seats([0, seat])


def test_round_is_found_in_ring_only_while_stored() -> None:
    rounds = tuple(header(1, height=height) for height in (4, 5, 2, 3))
    state = run(RunState.ROUND_TRAIN, rounds=rounds, head=1)
    assert [header and header.height for header in map(state.round, range(-1, 7))] == [
        None, None, None, 2, 3, 4, 5, None,
    ]  # fmt: skip
    assert [state.ring(height) for height in (1, 2, 3, 4, 5)] == [None, 2, 3, 0, 1]


def test_round_before_first_does_not_exist() -> None:
    state = run(RunState.ROUND_TRAIN, rounds=(header(0b11, height=0),))
    assert state.round(0) is state.current
    assert state.round(-1) is None
