"""Test which levels every witness must fetch: those with few drawn holders."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules import availability, committee, consensus
from aftermath.rules.members import Members
from aftermath.rules.run import MAX_WITNESSES, Round, Run
from aftermath.rules.state import EstablishedOnly, MemberState, RunState
from rules import builders
from rules.builders import config, header, seat
from rules.test_consensus_rules import attest

LEVELS = 3


def _run(
    tiers: list[int], *, nodes: int = 0, known: int = 0, judges: int = 0, seed: int = 0
) -> tuple[Round, Run, Members]:
    roster = (1 << len(tiers)) - 1
    members = builders.members(
        {number: seat(number, tier=tier) for number, tier in enumerate(tiers)}, judges=judges
    )
    run = builders.run(
        RunState.ROUND_TRAIN,
        levels=LEVELS,
        levels_established=known,
        config=config(witness_nodes=nodes),
    )
    most = min(nodes or MAX_WITNESSES, MAX_WITNESSES, len(tiers))
    return header(roster, seed=seed, elected=most), run, members


def _fetched_by_all(round: Round, run: Run, members: Members) -> frozenset[int]:
    return availability.fetched_by_all(
        availability.judged_by(round, run, members), round, run, members
    )


@given(st.integers(1, 256), st.integers(0, 32), st.integers(0, 2**64 - 1), st.data())
def test_drawn_seats_witness_if_nobody_leaves(
    count: int, nodes: int, seed: int, data: st.DataObject
) -> None:
    judges = data.draw(st.integers(0, 2**count - 1))
    round, run, members = _run([0] * count, nodes=nodes, judges=judges, seed=seed)
    if data.draw(st.booleans()) and judges:
        round = replace(round, established=EstablishedOnly.WITNESS)
        most = min(committee.wanted_witnesses(round, nodes), judges.bit_count())
        round = replace(round, elected=most)
    drawn = availability.drawn(round, run, members)
    assert drawn == committee.witnesses(round, members)
    gone = data.draw(st.sampled_from(range(count)))
    seats = [
        replace(one, state=MemberState.DROPPED) if at == gone else one
        for at, one in enumerate(members.seats)
    ]
    later = replace(members, seats=tuple(seats), healthy=members.healthy & ~(1 << gone))
    assert availability.drawn(replace(round, attested=1), run, later) == drawn, (
        "it is the same at any time"
    )


def test_only_holders_have_level_if_all_members_witness() -> None:
    for tiers in ([0, 1, 2], [0] + [2] * 31, [2] * 32):
        assert _fetched_by_all(*_run(tiers)) == frozenset()


@given(st.lists(st.integers(0, 2), min_size=33, max_size=256), st.integers(0, 2**64 - 1), st.data())
def test_all_witnesses_have_level_with_few_drawn_holders(
    tiers: list[int], seed: int, data: st.DataObject
) -> None:
    judges = data.draw(st.integers(0, 2 ** len(tiers) - 1))
    known = data.draw(st.integers(0, 7))
    round, run, members = _run(tiers, known=known, judges=judges, seed=seed)
    drawn = availability.drawn(round, run, members)
    result = _fetched_by_all(round, run, members)
    assert LEVELS - 1 not in result
    for level in range(LEVELS - 1):
        holders = {
            at
            for at, tier in enumerate(tiers)
            if tier <= level and (not known >> level & 1 or judges >> at & 1)
        }
        there = holders & set(drawn)
        needed = sum(tier <= level for tier in tiers) > 1
        assert (level in result) == (needed and there != holders and len(there) < availability.MANY)


def test_common_levels_need_no_holder_quorum() -> None:
    """Only one of two holders is drawn. Whatever it attests, the quorum of witnesses decides."""
    tiers = [0, 0, *[1] * 4]
    for seed in range(40):
        round, run, members = _run(tiers, nodes=4, seed=seed)
        drawn = availability.drawn(round, run, members)
        holders = [number for number in drawn if tiers[number] == 0]
        judged = availability.judged_by(round, run, members)
        assert (0 not in judged) == (len(holders) < 2)
        if len(holders) != 1:
            continue
        for without in ({0}, {1}, {0, 1}):
            recorded = {
                number: set(range(6)) - (without if number in holders else set())
                for number in drawn
            }
            attestations = [
                attest(w, {s: bytes([s]) * 32 for s in of}, round.roster)
                for w, of in recorded.items()
            ]
            attesting = replace(round, attested=round.roster)
            accepted = consensus.consensus(attesting, attestations, round.roster)
            result = consensus.vouched(
                accepted, attestations, round.roster, run, members, range(LEVELS), judged
            )
            assert result[0] == result[LEVELS - 1] == frozenset(range(6))
