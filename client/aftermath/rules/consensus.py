"""Consensus: which results of a round every member applies.

A result is applied when a quorum of the elected witnesses recorded the same fingerprint of its
commitment. The witnesses are those of the next round, or with an overlap of 0 of the round itself
(`Config.judges`). The answer does not depend on the order of attestations.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from aftermath.rules import availability, bitmap, committee
from aftermath.rules.members import Members
from aftermath.rules.run import FINGERPRINT_BYTES, Attestation, Round, Run

_WORD = 64
# 2,560 bits are shared by 64, 128 or 256 seats, so a seat has 40, 20 or 10 bits. They lie in bit
# planes, so that the program compares 64 seats at a time. Exact places, unlike a bloom filter, give
# no false positives among honest members.
_PLANES = FINGERPRINT_BYTES * 8 // _WORD
"""Number of 64-bit words in the fingerprint field."""


class Fingerprint(NamedTuple):
    """The low `bits` bits of a hash of a commitment in one attesting round, as an integer."""

    value: int
    bits: int


def fingerprint_bits(roster: int) -> int:
    """Return the bits per member of a roster."""
    return _PLANES // _columns(roster)


def _columns(roster: int) -> int:
    """Return the 64-seat words per plane: 1, 2 or 4."""
    return next(columns for columns in (1, 2, 4) if roster.bit_length() <= columns * _WORD)


def _places(seat: int, roster: int) -> range:
    """Return the bit positions of a seat's fingerprint in the field, lowest first."""
    columns = _columns(roster)
    return range(seat, seat + fingerprint_bits(roster) * columns * _WORD, columns * _WORD)


def fingerprint(commitment: bytes, roster: int, salt: int) -> Fingerprint:
    """Return the fingerprint of a member's 32-byte commitment in the attesting round with
    `salt`.
    """
    bits = fingerprint_bits(roster)
    return Fingerprint(_low_bits(commitment, salt, bits), bits)


def matches(accepted: Fingerprint, commitment: bytes, salt: int) -> bool:
    """Return whether a commitment matches, up to collisions, what the witnesses accepted."""
    return _low_bits(commitment, salt, accepted.bits) == accepted.value


def _low_bits(commitment: bytes, salt: int, bits: int) -> int:
    """Return the first 8 bytes of sha256(commitment, salt as 8 LE bytes), little-endian, cut to
    `bits`.
    """
    # Unlike the seed, the salt is unknown until the attesting round begins, so no member can
    # prepare two results with one fingerprint in time. A late sender can, and with an overlap of 0
    # everyone can. Then only the level hashes distinguish the two results.
    digest = hashlib.sha256(commitment + salt.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little") & ((1 << bits) - 1)


def pack_fingerprints(commitments: Mapping[int, bytes], roster: int, salt: int) -> bytes:
    """Return the 320 bytes that a witness sends for its {seat: commitment}.

    Raises ValueError for a seat outside `roster`.
    """
    field = 0
    for seat, commitment in commitments.items():
        if not bitmap.contains(roster, seat):
            raise ValueError(f"member seat {seat} is not in the roster that is being attested")
        value = fingerprint(commitment, roster, salt).value
        for bit, place in enumerate(_places(seat, roster)):
            field |= (value >> bit & 1) << place
    return field.to_bytes(FINGERPRINT_BYTES, "little")


def unpack_fingerprints(attestation: Attestation, roster: int) -> dict[int, Fingerprint]:
    """Return {seat: fingerprint} for every member whose result a witness recorded."""
    field = int.from_bytes(attestation.fingerprints, "little")
    bits = fingerprint_bits(roster)
    return {
        seat: Fingerprint(
            sum((field >> place & 1) << bit for bit, place in enumerate(_places(seat, roster))),
            bits,
        )
        for seat in bitmap.seats(roster & attestation.participation)
    }


def scores(attestations: Iterable[Attestation]) -> dict[int, int]:
    """Return how many witnesses recorded a result of each seat. Seats without a result are
    absent.
    """
    return dict(
        Counter(
            seat for attestation in attestations for seat in bitmap.seats(attestation.participation)
        )
    )


def left_out(
    attesting: Round, attestations: Iterable[Attestation], run: Run, members: Members
) -> int:
    """Return the seats (a bitmap of all 256) that a quorum of the witnesses did not record.

    Return none if fewer than a quorum attested and stayed.
    """
    # It is not enough that a result lacks a quorum: if exactly a quorum attested, one liar causes
    # that. Votes of members that have left do not count.
    needed = committee.round_quorum(attesting, committee.drop_electorate(run, members, attesting))
    remaining = [one for one in attestations if bitmap.contains(members.healthy, one.seat)]
    if len(remaining) < needed:
        return 0
    counts = scores(remaining)
    return bitmap.from_seats(
        s for s in range(bitmap.MAX_MEMBERS) if len(remaining) - counts.get(s, 0) >= needed
    )


def consensus(
    attesting: Round, attestations: Iterable[Attestation], roster: int
) -> dict[int, Fingerprint]:
    """Return the accepted results of the round that `attesting` judges, by seat."""
    needed = committee.round_quorum(attesting, attesting.elected)
    votes: Counter[tuple[int, Fingerprint]] = Counter()
    for attestation in attestations:
        votes.update(unpack_fingerprints(attestation, roster).items())
    # The program schedules every other result for retraining, so those must not be applied.
    accepted = {
        seat: fingerprint for (seat, fingerprint), count in votes.items() if count >= needed
    }
    return {
        seat: accepted[seat]
        for seat in sorted(accepted)
        if bitmap.contains(attesting.attested, seat)
    }


def judging(
    attestations: Iterable[Attestation], run: Run, members: Members, level: int
) -> list[Attestation]:
    """Return the attestations that count for the delivery of a level, as in the program.

    The judges of a level hold it. If the epoch began with established holders, only these judge.
    Otherwise two newcomers that declare a tier could vouch for each other's results. If they hid
    those results from the only other holder, that holder would drop out of the run.
    """
    may = availability.may_judge(run, members, level)
    return [
        one
        for one in attestations
        if bitmap.contains(may, one.seat) and members.seats[one.seat].tier <= level
    ]


def vouched(
    accepted: Mapping[int, Fingerprint],
    attestations: Collection[Attestation],
    roster: int,
    run: Run,
    members: Members,
    levels: range,
    judged_by: Mapping[int, frozenset[int]],
) -> dict[int, frozenset[int]]:
    """Return, for each level, the members whose accepted result is applied on that level.

    `judged_by` has the drawn judges by level (`availability.judged_by`). Every witness records the
    other levels. `run` and `members` may be read at any moment from the epoch's first round to its
    end.
    """
    recorded = {one.seat: unpack_fingerprints(one, roster) for one in attestations}

    def of_level(level: int) -> Iterable[int]:
        if level not in judged_by:
            return accepted
        if sum(members.seats[seat].tier <= level for seat in bitmap.seats(roster)) == 1:
            # A level with one holder is applied like the rest, because no other member needs it.
            return (
                seat
                for seat in accepted
                if bitmap.contains(availability.may_judge(run, members, level), seat)
            )
        records = [recorded[one.seat] for one in judging(attestations, run, members, level)]
        counts = Counter(
            seat for results in records for seat in accepted if results.get(seat) == accepted[seat]
        )
        silent = judged_by[level] - recorded.keys()
        drawn = len(judged_by[level])
        # Count relative to the judges drawn, not to those that attested. Otherwise, after a round
        # closed early, a single attester could decide about a level that it hides from others.
        return (seat for seat in accepted if counts[seat] >= _enough(drawn, its_own=seat in silent))

    return {level: frozenset(of_level(level)) for level in levels}


def _enough(drawn: int, *, its_own: bool) -> int:
    """Return how many of a level's drawn judges must have recorded a result.

    `its_own`: the result is from a judge that did not attest. The result then counts as recorded by
    that judge, but a dishonest judge alone must not get its own result applied.
    """
    quorum = committee.quorum(drawn)
    return quorum if not its_own else max(quorum - 1, min(drawn - 1, drawn - quorum + 1))
