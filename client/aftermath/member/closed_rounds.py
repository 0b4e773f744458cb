"""Closed witnesses: those that attest no result of a round announced after their message.

An announcement counts only from a seat of the run, once per seat and stored round. Nothing here
depends on what this member did in the epoch, so a restarted member counts it too.
"""

from __future__ import annotations

from collections.abc import Iterable

from aftermath.base.concurrency import Pulse
from aftermath.member.feed import RunFeed
from aftermath.rules import bitmap
from aftermath.rules.committee import round_quorum, wanted_witnesses, witnesses
from aftermath.rules.run import RoundId
from aftermath.rules.seal import Closed


class ClosedRounds:
    """The closed rounds that one member has heard of."""

    def __init__(self, feed: RunFeed) -> None:
        self._feed = feed
        self._heard: dict[RoundId, dict[int, bytes]] = {}
        self.changed = Pulse()

    def hear(self, said: Closed, raw: bytes) -> None:
        """Record an announcement whose signature was checked."""
        run = self._feed.run
        members = self._feed.members
        place = RoundId(said.epoch, said.height, said.seed)
        member = members.seats[said.seat]
        if said.run_id != run.run_id or self._place(said.height) != place:
            return
        if (said.sender, said.signer) != (member.p2p, member.signer):
            return
        self._heard = {
            kept: heard for kept, heard in self._heard.items() if self._place(kept.height) == kept
        }
        heard = self._heard.setdefault(place, {})
        if said.seat not in heard:
            heard[said.seat] = raw
            self.changed.fire()

    def missing(self, height: int) -> frozenset[int]:
        """Return the witnesses of a round that are not known to be closed.

        Empty once a quorum is closed.
        """
        # Whether a seat witnesses the round is decided now, not when the message arrived: a member
        # that leaves makes room for another.
        run = self._feed.run
        attesting = run.round(run.config.judges(height))
        place = self._place(height)
        if attesting is None or place is None:
            return frozenset()
        elected = witnesses(attesting, self._feed.members)
        missing = frozenset(elected) - self._heard.get(place, {}).keys()
        closed = len(elected) - len(missing)
        return missing if closed < round_quorum(attesting, attesting.elected) else frozenset()

    def by_quorum(self, height: int) -> bool:
        """Return whether a quorum of the witnesses of a round's results is closed."""
        return self.is_judged(height) and not self.missing(height)

    def by_number(self, height: int) -> bool:
        """Return whether as many members of the next round closed the newest round as a quorum has.

        Its witnesses are not elected yet, so members are counted instead.
        """
        run = self._feed.run
        place = self._place(height)
        if place is None or height != run.current.height or self.is_judged(height):
            return False
        seated = run.next_roster & self._feed.members.healthy
        if run.current.established:
            seated &= self._feed.members.judges
        wanted = wanted_witnesses(run.current, run.config.witness_nodes)
        elected = min(wanted, seated.bit_count())
        closed = sum(bitmap.contains(seated, seat) for seat in self._heard.get(place, {}))
        return closed >= round_quorum(run.current, elected)

    def is_judged(self, height: int) -> bool:
        """Return whether the witnesses of a round's results are known."""
        run = self._feed.run
        return run.round(run.config.judges(height)) is not None

    def told(self, height: int, seats: Iterable[int]) -> list[bytes]:
        """Return the signed announcements of these seats for a round."""
        place = self._place(height)
        heard = self._heard.get(place, {}) if place is not None else {}
        return [heard[seat] for seat in seats if seat in heard]

    def _place(self, height: int) -> RoundId | None:
        header = self._feed.run.round(height)
        return None if header is None else RoundId(self._feed.run.epoch, height, header.seed)
