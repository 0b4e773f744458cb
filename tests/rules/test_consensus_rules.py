"""Test that fingerprints round-trip, and that a quorum's results are applied in any order of
attestations.
"""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aftermath.rules import availability, bitmap, committee, consensus
from aftermath.rules.run import FINGERPRINT_BYTES, Attestation
from aftermath.rules.state import RunState
from rules import builders, program_rules
from rules.builders import header, seat

SEED = 0x0123_4567_89AB_CDEF
FULL = (1 << 256) - 1
SEAT_SETS = st.sets(st.integers(0, 255), min_size=1, max_size=256)


def attest(seat: int, results: dict[int, bytes], roster: int) -> Attestation:
    return Attestation(
        seat, bitmap.from_seats(results), consensus.pack_fingerprints(results, roster, SEED)
    )


@pytest.mark.parametrize("last", [0, 1, 62, 63, 64, 65, 127, 128, 191, 192, 193, 254, 255])
def test_fingerprints_round_trip_for_every_roster_size(last: int) -> None:
    rng = random.Random(last)
    roster = bitmap.from_seats([last, *rng.sample(range(last + 1), rng.randint(0, last))])
    results = {seat: rng.randbytes(32) for seat in bitmap.seats(roster)}
    attestation = attest(0, results, roster)
    assert len(attestation.fingerprints) == FINGERPRINT_BYTES
    read = consensus.unpack_fingerprints(attestation, roster)
    assert read == {
        seat: consensus.fingerprint(result, roster, SEED) for seat, result in results.items()
    }
    assert all(consensus.matches(read[seat], result, SEED) for seat, result in results.items())
    assert read[last].bits == [40, 20, 10, 10][last // 64]


def test_fingerprint_bits_are_stored_in_word_planes() -> None:
    """Bit k of seat s is bit s % 64 of word k * c + s // 64, where c words hold the roster."""
    roster = 1 << 70 | 1
    packed = consensus.pack_fingerprints({70: b"c" * 32}, roster, SEED)
    words = [int.from_bytes(packed[8 * word : 8 * word + 8], "little") for word in range(40)]
    value = consensus.fingerprint(b"c" * 32, roster, SEED).value
    assert words == [(value >> word // 2 & 1) << 6 if word % 2 else 0 for word in range(40)]


@given(SEAT_SETS, st.data())
def test_member_without_result_has_no_fingerprint(seats: set[int], data: st.DataObject) -> None:
    roster = bitmap.from_seats(seats)
    delivered = data.draw(st.sets(st.sampled_from(sorted(seats))))
    attestation = attest(0, dict.fromkeys(delivered, b"\xff" * 32), roster)
    fingerprint = consensus.fingerprint(b"\xff" * 32, roster, SEED)
    assert consensus.unpack_fingerprints(attestation, roster) == dict.fromkeys(
        delivered, fingerprint
    )
    field = int.from_bytes(attestation.fingerprints, "little")
    assert field.bit_count() == len(delivered) * fingerprint.value.bit_count()


def test_seat_outside_roster_cannot_be_attested() -> None:
    with pytest.raises(ValueError, match="seat 5 is not in the roster"):
        consensus.pack_fingerprints({5: bytes(32)}, 0b11, SEED)


def test_fingerprint_of_another_commitment_does_not_match() -> None:
    fingerprint = consensus.fingerprint(b"\x01" + bytes(31), FULL, SEED)
    assert fingerprint.bits == 10
    assert not consensus.matches(fingerprint, b"\x02" + bytes(31), SEED)


def test_equal_fingerprints_differ_in_another_round() -> None:
    """Two commitments with a forced equal fingerprint differ under the next attesting round's
    salt.
    """
    first = (0).to_bytes(32, "big")
    fingerprint = consensus.fingerprint(first, FULL, SEED)
    others = (number.to_bytes(32, "big") for number in range(1, 100_000))
    twin = next(other for other in others if consensus.matches(fingerprint, other, SEED))
    unknown = range(SEED + 1, SEED + 101)
    alike = [
        seed
        for seed in unknown
        if consensus.matches(consensus.fingerprint(first, FULL, seed), twin, seed)
    ]
    assert len(alike) <= 2


def test_fingerprint_is_low_bits_of_hash() -> None:
    digest = hashlib.sha256(b"c" * 32 + SEED.to_bytes(8, "little")).digest()
    assert consensus.fingerprint(b"c" * 32, 0b111, SEED) == (
        int.from_bytes(digest[:5], "little"),
        40,
    )
    assert consensus.fingerprint(b"c" * 32, FULL, SEED) == (
        int.from_bytes(digest[:2], "little") % 1024,
        10,
    )


@given(st.integers(1, 256), st.integers(0, 2**32), st.data())
def test_result_is_applied_iff_quorum_recorded_the_same(
    clients: int, seed: int, data: st.DataObject
) -> None:
    roster = (1 << clients) - 1
    elected = program_rules.elected_count(0, clients)
    needed = committee.quorum(elected)
    rng = random.Random(seed)
    true, forged = ({seat: rng.randbytes(32) for seat in range(clients)} for _ in range(2))
    watched = data.draw(st.integers(0, clients - 1))
    fingerprint, other = (consensus.fingerprint(of[watched], roster, SEED) for of in (true, forged))
    assume(fingerprint != other)  # in a large roster, a fingerprint has only ten bits
    honest = data.draw(st.integers(0, elected))
    witnesses = [
        attest(w, {watched: true[watched] if w < honest else forged[watched]}, roster)
        for w in range(elected)
    ]
    attesting = header(roster, attested=roster)
    accepted = consensus.consensus(attesting, witnesses, roster)
    if honest >= needed:
        assert accepted == {watched: fingerprint}
    elif elected - honest >= needed:
        assert accepted == {watched: other}
    else:
        assert accepted == {}
    rng.shuffle(witnesses)
    assert list(consensus.consensus(attesting, witnesses, roster).items()) == list(accepted.items())


def test_quorum_counts_elected_not_attesters() -> None:
    roster = 0b111111
    results = {seat: bytes([seat]) * 32 for seat in range(6)}
    attesting = header(roster, attested=roster)
    assert (
        consensus.consensus(attesting, [attest(w, results, roster) for w in range(3)], roster) == {}
    )
    assert list(
        consensus.consensus(attesting, [attest(w, results, roster) for w in range(4)], roster)
    ) == [*range(6)]


def test_attestation_uncounted_by_program_is_not_applied() -> None:
    results = {0: b"a" * 32, 1: b"b" * 32}
    attesting = header(0b11, attested=0b10)
    assert list(
        consensus.consensus(attesting, [attest(w, results, 0b11) for w in range(2)], 0b11)
    ) == [1]


def test_members_without_share_always_count() -> None:
    before = header(0b111)
    attesting = header(0b111)
    witnesses = [attest(w, {0: bytes(32)}, 0b111) for w in range(2)]
    assert consensus.scores(witnesses) == {0: 2}
    assert program_rules.attested_mask(attesting, witnesses, before, idle=0b100) == 0b101
    assert program_rules.attested_mask(attesting, witnesses[:1], before, idle=0) == 0


def vouched_by(
    recorded: dict[int, set[int]],
    tiers: list[int],
    levels: int = 3,
    *,
    judges: int = 0,
    known: int = 0,
) -> dict[int, frozenset[int]]:
    """Return what is applied at each level if these witnesses recorded these members' true results.

    For the levels `known`, the `judges` decide who delivered them.
    """
    roster = (1 << len(tiers)) - 1
    attestations = [
        attest(w, {s: bytes([s]) * 32 for s in of}, roster) for w, of in recorded.items()
    ]
    attesting = header(roster, attested=roster)
    accepted = consensus.consensus(attesting, attestations, roster)
    of_all = builders.members(
        {number: seat(number, tier=tier) for number, tier in enumerate(tiers)}, judges=judges
    )
    run = builders.run(RunState.ROUND_TRAIN, levels=levels, levels_established=known)
    return consensus.vouched(
        accepted,
        attestations,
        roster,
        run,
        of_all,
        range(levels),
        availability.judged_by(attesting, run, of_all),
    )


def test_level_hidden_from_one_of_two_holders_is_not_applied() -> None:
    """Member 0 hides its level 0, so holder 1 records nothing, and the others cannot know."""
    everybody = {0, 1, 2, 3}
    recorded = {0: everybody, 1: everybody - {0}, 2: everybody, 3: everybody}
    result = vouched_by(recorded, [0, 0, 1, 2])
    assert result == {0: frozenset({1, 2, 3}), 1: frozenset(everybody), 2: frozenset(everybody)}


def test_liar_among_three_holders_changes_no_result() -> None:
    recorded = {0: {0}, 1: {1, 2, 3, 4}, 2: {1, 2, 3, 4}, 3: {0, 1, 2, 3, 4}, 4: {0, 1, 2, 3, 4}}
    assert vouched_by(recorded, [0, 0, 0, 2, 2])[0] == frozenset({1, 2, 3, 4})


def test_level_with_one_holder_is_applied_like_the_rest() -> None:
    recorded = {w: {0, 1, 2, 3} for w in (1, 2, 3)}
    assert vouched_by(recorded, [0, 1, 1, 1])[0] == frozenset({0, 1, 2, 3}), "it is slow itself"
    newcomer = vouched_by(recorded, [0, 1, 1, 1], judges=0b1110, known=0b111)
    assert newcomer[0] == frozenset({1, 2, 3}), "the judge that has shown the level is absent"


def test_level_is_not_applied_on_its_senders_word_alone() -> None:
    """Member 0 hides its level from 1 and 2 and closes the round before they attest."""
    everybody = set(range(11))
    tiers = [0, 0, 0, *[2] * 8]
    others = dict.fromkeys(range(3, 11), everybody)
    assert vouched_by(others, tiers) == {0: frozenset(), 1: frozenset(), 2: everybody}
    alone = vouched_by(others | {0: everybody}, tiers)
    assert alone == {0: set(), 1: set(), 2: everybody}, (
        "one of three may lie, and the others be dead"
    )
    late = vouched_by(others | {0: everybody, 1: everybody - {0}}, tiers)
    assert late == {0: everybody - {0}, 1: everybody - {0}, 2: everybody}, (
        "a quorum of three is two"
    )


def test_two_newcomers_do_not_judge_established_level() -> None:
    """Members 5 and 6 declare tier 0 and hide level 0 from member 0, its only established
    holder.
    """
    recorded: dict[int, set[int]] = {w: set(range(7)) for w in range(1, 7)} | {0: set(range(5))}
    tiers = [0, 1, 1, 2, 2, 0, 0]
    result = vouched_by(recorded, tiers, judges=0b11111, known=0b111)
    assert result == {0: frozenset(range(5)), 1: frozenset(range(7)), 2: frozenset(range(7))}
    assert vouched_by(recorded, tiers)[0] == frozenset(range(7)), (
        "nobody has shown it in a first epoch: two of three"
    )


def test_silent_judge_counts_for_its_own_result_only() -> None:
    recorded = {w: set(range(5)) for w in range(1, 5)}
    assert vouched_by(recorded, [0, 1, 1, 2, 0], judges=0b1111, known=0b111)[0] == {0}, (
        "4 has come later"
    )
    assert vouched_by(recorded, [0, 1, 1, 2, 0], judges=0b1110, known=0b110)[0] == {0}, (
        "of two newcomers a quorum is both"
    )


def test_only_judge_cannot_block_last_level_against_quorum() -> None:
    """The only judge claims that it received nothing."""
    recorded: dict[int, set[int]] = {w: set(range(4)) for w in range(1, 4)} | {0: set()}
    result = vouched_by(recorded, [0, 0, 0, 2], judges=1, known=0b111)
    assert (result[0], result[2]) == (frozenset(), frozenset(range(4)))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=32), st.data())
def test_level_is_applied_iff_quorum_of_its_judges_agrees(
    of: list[int], data: st.DataObject
) -> None:
    everybody = set(range(len(of)))
    silent = data.draw(st.sets(st.sampled_from(sorted(everybody)), max_size=len(of) // 3))
    recorded = {
        w: data.draw(st.sets(st.sampled_from(sorted(everybody)))) for w in everybody - silent
    }
    judges = data.draw(st.integers(0, 2 ** len(of) - 1))
    known = data.draw(st.integers(0, 15))
    result = vouched_by(recorded, of, 4, judges=judges, known=known)
    roster = (1 << len(of)) - 1
    attestations = [
        attest(w, {s: bytes([s]) * 32 for s in seats}, roster) for w, seats in recorded.items()
    ]
    accepted = set(consensus.consensus(header(roster, attested=roster), attestations, roster))
    assert result[3] == accepted
    for level in range(3):
        holders = {w for w in everybody if of[w] <= level}
        voters = {w for w in holders if not known >> level & 1 or judges >> w & 1}
        for member in accepted:
            having = [w for w in voters if member in recorded.get(w, ())]
            quorum = -(-2 * len(voters) // 3)
            needed = (
                max(quorum - 1, 2 if len(voters) == 3 else 0)
                if member in voters & silent
                else quorum
            )
            enough = voters and len(having) >= needed
            trusted = not known >> level & 1 or judges >> member & 1
            assert (member in result[level]) == bool(trusted if len(holders) == 1 else enough)
    shuffled = dict(data.draw(st.permutations(list(recorded.items()))))
    assert vouched_by(shuffled, of, 4, judges=judges, known=known) == result
