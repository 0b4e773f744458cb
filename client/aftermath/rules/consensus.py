"""Which results of a round everybody applies: what the witnesses that judge it agree they received.

They are those of the next round, or with an overlap of 0 those of the round itself (`Config.judges`).

Decided: a witness stores, per member of the attested roster, one participation bit and a fingerprint of the commitment
it accepted, at an exact place (no bloom filter, so no false positive among honest members). 2,560 bits are shared by
64, 128 or 256 seats, whichever hold the roster: 40, 20 or 10 bits each. They lie in bit planes, so that the program
compares 64 seats at a time. A fingerprint is the low bits of sha256(commitment, salt of the attesting round): nobody
who announced a result before that round began could have made two that look alike, because its salt was not known yet.
(Its seed was: that is drawn a round ahead.)
Whoever knows the salt in time can: a late announcer, and with an overlap of 0 everybody. Then only the level hashes
tell.
A result is applied when a quorum of the *elected* witnesses recorded the same fingerprint. The program counts the same
when the round closes (`attested`), and what it does not count it has trained again, so nothing else is applied either;
the answer does not depend on the order in which attestations arrived.
Of such a result a level is applied when a quorum of its judges recorded it, of as many as were drawn as witnesses: of
those who attested one alone could be left, that had the round closed while the others still waited for what it hides.
Who is silent stands for its own result beside as many others as a quorum lacks of it, and beside no fewer than a quorum
cannot do without: it may be dead, and of three one that lies would be the only one to have it. The judges are those by
whose word the program counts who delivers. They hold the level, since the others cannot know whether it was to be had,
and whoever cannot get it must not need it. Where holders began the epoch who had shown before that they hold it, they
are these alone: two newcomers that declare a tier are most of its holders where there is one other, and what they vouch
for among themselves and hide from that one would push it out of the run. The last level everybody holds, so the quorum
that accepted the result has it, and no few can keep it from the others. So it is with a level of which few judges are
drawn (`availability`).
In an epoch that begins without established holders of a level all are newcomers, and all equal: a quorum of its holders
decides. A level that one member alone holds is applied as the rest, since nobody else needs it.
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
_PLANES = FINGERPRINT_BYTES * 8 // _WORD
"""Words of the field: planes times the words of a plane."""


class Fingerprint(NamedTuple):
    """The low `bits` bits of a hash of a commitment in one attesting round, as an integer."""

    value: int
    bits: int


def fingerprint_bits(roster: int) -> int:
    """Bits per member of a roster."""
    return _PLANES // _columns(roster)


def _columns(roster: int) -> int:
    """Words of 64 seats that a plane has: 1, 2 or 4."""
    return next(columns for columns in (1, 2, 4) if roster.bit_length() <= columns * _WORD)


def _places(seat: int, roster: int) -> range:
    """Where in the field the bits of a seat's fingerprint are, the lowest first."""
    columns = _columns(roster)
    return range(seat, seat + fingerprint_bits(roster) * columns * _WORD, columns * _WORD)


def fingerprint(commitment: bytes, roster: int, salt: int) -> Fingerprint:
    """The fingerprint of a 32-byte commitment of a member of `roster`, in the attesting round of that salt."""
    bits = fingerprint_bits(roster)
    return Fingerprint(_low_bits(commitment, salt, bits), bits)


def matches(accepted: Fingerprint, commitment: bytes, salt: int) -> bool:
    """Whether a commitment is the one (up to collisions) that the witnesses of the round of that salt accepted."""
    return _low_bits(commitment, salt, accepted.bits) == accepted.value


def _low_bits(commitment: bytes, salt: int, bits: int) -> int:
    """The first eight bytes of sha256(commitment, salt as 8 LE bytes), read little-endian, cut to `bits`."""
    digest = hashlib.sha256(commitment + salt.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little") & ((1 << bits) - 1)


def pack_fingerprints(commitments: Mapping[int, bytes], roster: int, salt: int) -> bytes:
    """The 320 bytes that a witness of `roster` sends for its {seat: commitment} in the attesting round of that salt.

    Raises ValueError for a seat outside the roster.
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
    """What a witness recorded: {seat: fingerprint} for every member of the roster whose result it took."""
    field = int.from_bytes(attestation.fingerprints, "little")
    bits = fingerprint_bits(roster)
    return {
        seat: Fingerprint(sum((field >> place & 1) << bit for bit, place in enumerate(_places(seat, roster))), bits)
        for seat in bitmap.seats(roster & attestation.participation)
    }


def scores(attestations: Iterable[Attestation]) -> dict[int, int]:
    """How many witnesses recorded a result of each seat; seats nobody recorded are absent."""
    return dict(Counter(seat for attestation in attestations for seat in bitmap.seats(attestation.participation)))


def left_out(attesting: Round, attestations: Iterable[Attestation], run: Run, members: Members) -> int:
    """The seats (a bitmap of all 256) that a quorum of the witnesses did not record; none when they were too few.

    That no quorum recorded a result is not enough: it is also so when one of exactly a quorum of witnesses lies. Nor do
    the votes count of those who have gone since.
    """
    needed = committee.quorum(committee.jury(run, members, attesting))
    remaining = [one for one in attestations if bitmap.contains(members.healthy, one.seat)]
    if len(remaining) < needed:
        return 0
    seen = scores(remaining)
    return bitmap.from_seats(s for s in range(bitmap.MAX_MEMBERS) if len(remaining) - seen.get(s, 0) >= needed)


def consensus(attesting: Round, attestations: Iterable[Attestation], roster: int) -> dict[int, Fingerprint]:
    """The results of the round that `attesting` judges (of that roster) which everybody applies, by seat."""
    needed = committee.quorum(attesting.elected)
    votes: Counter[tuple[int, Fingerprint]] = Counter()
    for attestation in attestations:
        votes.update(unpack_fingerprints(attestation, roster).items())
    accepted = {seat: seen for (seat, seen), count in votes.items() if count >= needed}
    return {seat: accepted[seat] for seat in sorted(accepted) if bitmap.contains(attesting.attested, seat)}


def judging(attestations: Iterable[Attestation], run: Run, members: Members, level: int) -> list[Attestation]:
    """Those of a round's attestations whose word counts about who delivered a level, as in the program."""
    may = availability.may_judge(run, members, level)
    return [one for one in attestations if bitmap.contains(may, one.seat) and members.seats[one.seat].tier <= level]


def vouched(
    accepted: Mapping[int, Fingerprint],
    attestations: Collection[Attestation],
    roster: int,
    run: Run,
    members: Members,
    levels: range,
    judged_by: Mapping[int, frozenset[int]],
) -> dict[int, frozenset[int]]:
    """For each level the members of which that level of their accepted result is applied.

    `judged_by` has the judges that are drawn, by level (`availability.judged_by`); of a level that is none of these
    each witness has what it recorded. `run` and `members` may be of any moment from the epoch's first round to its end.
    """
    recorded = {one.seat: unpack_fingerprints(one, roster) for one in attestations}

    def of_level(level: int) -> Iterable[int]:
        if level not in judged_by:
            return accepted
        if sum(members.seats[seat].tier <= level for seat in bitmap.seats(roster)) == 1:
            return (seat for seat in accepted if bitmap.contains(availability.may_judge(run, members, level), seat))
        seen = [recorded[one.seat] for one in judging(attestations, run, members, level)]
        counts = Counter(seat for results in seen for seat in accepted if results.get(seat) == accepted[seat])
        silent, drawn = judged_by[level] - recorded.keys(), len(judged_by[level])
        return (seat for seat in accepted if counts[seat] >= _enough(drawn, its_own=seat in silent))

    return {level: frozenset(of_level(level)) for level in levels}


def _enough(drawn: int, *, its_own: bool) -> int:
    """Of so many judges of a level those who must have recorded a result; `its_own`: of one who is silent."""
    quorum = committee.quorum(drawn)
    return quorum if not its_own else max(quorum - 1, min(drawn - 1, drawn - quorum + 1))
