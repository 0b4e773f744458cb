"""Test in random cooldowns that program, client and oracle elect the same committees, and that the
rules decide the end.
"""

from __future__ import annotations

from collections import Counter

import pytest

from aftermath.rules import bitmap
from aftermath.rules.departures import levels_lost
from aftermath.rules.state import RunState
from programs.random_cooldowns import Cooldowns, Drawn


@pytest.mark.parametrize(
    ("seed", "states"),
    [
        (0, 80),
        pytest.param(1, 500, marks=pytest.mark.slow),
        pytest.param(2, 10_000, marks=pytest.mark.nightly),
    ],
)
def test_cooldown_committees_and_results_match_client(seed: int, states: int) -> None:
    counts = walk(seed, states)
    assert (
        min(counts[kind] for kind in ("attested", "unknown", "full", "in part", "alone", "all")) > 0
    ), counts


@pytest.mark.parametrize("states", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_program_attests_all_but_levels_named_as_lost(states: int) -> None:
    """All members that stay attest alike, and those that left have not attested."""
    cooldowns = Cooldowns("lost levels")
    counts = Counter[bool]()
    for number in range(states):
        drawn = cooldowns.draw()
        gone = drawn.run.began & ~drawn.members.healthy
        lost = {one.level for one in levels_lost(drawn.run, drawn.members, silent=gone)}
        hashes = {level: b"t" * 31 + bytes([level]) for level in range(drawn.run.levels)}
        for seat in drawn.attesters():
            cooldowns.attest(drawn, seat, hashes).ok()
        cooldowns.world.advance(31)
        cooldowns.tick().ok()
        known = cooldowns.scenario.run.level_hashes
        tiers = [drawn.members.seats[seat].tier for seat in bitmap.seats(drawn.run.began)]
        for level in range(min(tiers), drawn.run.levels):
            is_lost = known[level] != hashes[level]
            assert is_lost == (level in lost), f"level {level} of state {number}"
            counts[is_lost] += 1
    assert min(counts[True], counts[False]) > 20, counts


def walk(seed: object, states: int) -> Counter[str]:
    """Draw `states` random states. Return how many had which kind, and the most compute units."""
    cooldowns = Cooldowns(seed)
    counts = Counter[str]()
    for number in range(states):
        drawn = cooldowns.draw()
        _one(cooldowns, drawn, f"state {number} of seed {seed}", counts)
    return counts


def _one(cooldowns: Cooldowns, drawn: Drawn, where: str, counts: Counter[str]) -> None:
    levels = range(drawn.run.levels)
    assert [list(electees) for electees in drawn.committees] == [
        drawn.oracle.electees(one) for one in levels
    ], where
    _attest(cooldowns, drawn, where, counts)
    cooldowns.world.advance(31)
    units = cooldowns.tick().ok().units
    unknown = drawn.end()
    run = cooldowns.scenario.run
    assert run.state is RunState.WAITING_FOR_MEMBERS, where
    known = run.model_source, run.level_hashes[: run.levels], run.levels_attested
    assert known == drawn.known(unknown), where
    kinds = {
        not bitmap.from_seats(electees) & ~drawn.members.judges
        for electees in drawn.committees
        if electees
    }
    counts["in part" if len(kinds) == 2 else "alone" if True in kinds else "all"] += 1
    facts = {
        "attested": drawn.attested,
        "unknown": unknown,
        "full": max(map(len, drawn.committees)) == 32,
    }
    counts += Counter({kind: int(bool(is_so)) for kind, is_so in facts.items()})
    counts["units of a tick"] = max(counts["units of a tick"], units)


def _attest(cooldowns: Cooldowns, drawn: Drawn, where: str, counts: Counter[str]) -> None:
    """Let some or all committee members and some other members attest, most of them the true
    hashes.
    """
    rng = cooldowns.rng
    attesters = drawn.attesters()
    sample = rng.sample(
        attesters, len(attesters) if rng.random() < 0.3 else min(len(attesters), rng.randint(0, 5))
    )
    sample += rng.choices(list(bitmap.seats(drawn.run.current.began)), k=2)
    rng.shuffle(sample)
    honest = rng.choice([1.0, 1.0, 1.0, 0.95, 0.5])
    for seat in sample:
        mine = [level for level in range(drawn.run.levels) if seat in drawn.committees[level]]
        of = mine if mine and rng.random() < 0.2 else range(drawn.run.levels)
        hashes = {
            level: (b"t" if rng.random() < honest else b"f") * 31 + bytes([level]) for level in of
        }
        outcome = cooldowns.attest(drawn, seat, hashes)
        expected = drawn.record(seat, hashes)
        assert outcome.error == expected, (
            f"{where}: seat {seat} is answered {outcome.error}, not {expected}"
        )
        counts["units of an attestation"] = max(counts["units of an attestation"], outcome.units)
    assert cooldowns.stated_hashes() == drawn.stated_hashes(), where
    assert cooldowns.scenario.run.levels_attested == bitmap.from_seats(drawn.attested), where
