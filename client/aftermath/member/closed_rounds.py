"""Track which witnesses have closed a round.

A witness that closed a round attests only results announced before its closing message. A closing
message counts only from a seat of the run, once per seat and stored round. Nothing here depends on
what this member did in the epoch, so a restarted member counts the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from aftermath.base.concurrency import Pulse
from aftermath.member.feed import RunFeed
from aftermath.rules import bitmap
from aftermath.rules.committee import round_quorum, wanted_witnesses, witnesses
from aftermath.rules.run import RoundId
from aftermath.rules.seal import RoundClosed


class ClosedRounds:
    """The closing messages that one member has received, by round."""

    def __init__(self, feed: RunFeed) -> None:
        self._feed = feed
        self._raw_by_round: dict[RoundId, dict[int, bytes]] = {}
        self.changed = Pulse()

    def hear(self, closing: RoundClosed, raw: bytes) -> None:
        """Record an announcement whose signature was checked."""
        run = self._feed.run
        members = self._feed.members
        round_id = RoundId(closing.epoch, closing.height, closing.seed)
        member = members.seats[closing.seat]
        if closing.run_id != run.run_id or self._round_id(closing.height) != round_id:
            return
        if (closing.sender, closing.signer) != (member.p2p, member.signer):
            return
        self._raw_by_round = {
            known: raw_by_seat
            for known, raw_by_seat in self._raw_by_round.items()
            if self._round_id(known.height) == known
        }
        raw_by_seat = self._raw_by_round.setdefault(round_id, {})
        if closing.seat not in raw_by_seat:
            raw_by_seat[closing.seat] = raw
            self.changed.fire()

    def missing(self, height: int) -> frozenset[int]:
        """Return the witnesses of a round whose closing message is missing.

        Empty once a quorum has closed the round.
        """
        # Decide now whether a seat witnesses the round, not when its message arrived: if a witness
        # leaves, another member replaces it.
        run = self._feed.run
        attesting = run.round(run.config.attesting_round(height))
        round_id = self._round_id(height)
        if attesting is None or round_id is None:
            return frozenset()
        elected = witnesses(attesting, self._feed.members)
        missing = frozenset(elected) - self._raw_by_round.get(round_id, {}).keys()
        closed = len(elected) - len(missing)
        return missing if closed < round_quorum(attesting, attesting.elected) else frozenset()

    def by_quorum(self, height: int) -> bool:
        """Return whether a quorum of the witnesses that attest a round has closed it."""
        return self.has_attesting_round(height) and not self.missing(height)

    def by_number(self, height: int) -> bool:
        """Return whether as many members as a quorum have closed the newest round.

        Its witnesses are not elected yet, so members of the next round are counted instead.
        """
        run = self._feed.run
        round_id = self._round_id(height)
        if round_id is None or height != run.current.height or self.has_attesting_round(height):
            return False
        seated = run.next_roster & self._feed.members.healthy
        if run.current.established:
            seated &= self._feed.members.judges
        wanted_count = wanted_witnesses(run.current, run.config.witness_nodes)
        elected = min(wanted_count, seated.bit_count())
        closed = sum(bitmap.contains(seated, seat) for seat in self._raw_by_round.get(round_id, {}))
        return closed >= round_quorum(run.current, elected)

    def has_attesting_round(self, height: int) -> bool:
        """Return whether the round whose witnesses attest a round's results has begun."""
        run = self._feed.run
        return run.round(run.config.attesting_round(height)) is not None

    def announcements(self, height: int, seats: Iterable[int]) -> list[bytes]:
        """Return the signed announcements of these seats for a round."""
        round_id = self._round_id(height)
        raw_by_seat = self._raw_by_round.get(round_id, {}) if round_id is not None else {}
        return [raw_by_seat[seat] for seat in seats if seat in raw_by_seat]

    def _round_id(self, height: int) -> RoundId | None:
        header = self._feed.run.round(height)
        return None if header is None else RoundId(self._feed.run.epoch, height, header.seed)
