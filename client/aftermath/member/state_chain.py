"""The chain of private optimizer states: each result's state continues from the last one's.

A commitment names the member's earlier commitment that its state continues from. If that one was
heard, its root must match, and no other heard result may lie between. What was not heard cannot be
compared and is no fault: announcements get lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from aftermath.rules.announcements import Commitment

_PLACES = 8
"""Number of rounds remembered per member. Later commitments can name only recent ones."""

Place = tuple[int, int]


class Lineage:
    """The last state roots that each member committed to."""

    def __init__(self) -> None:
        self._told: dict[bytes, dict[Place, set[bytes]]] = {}

    def begin(self, epoch: int) -> None:
        """Keep only the roots of the epoch before `epoch`, from which its results can continue."""
        for signer, told in list(self._told.items()):
            kept = {place: afters for place, afters in told.items() if place[0] == epoch - 1}
            if kept:
                self._told[signer] = kept
            else:
                del self._told[signer]

    def hear(self, said: Commitment) -> None:
        """Record a commitment's root. Two of one place are the signer's fault."""
        told = self._told.setdefault(said.signer, {})
        told.setdefault((said.epoch, said.height), set()).add(said.private.after)
        if len(told) > _PLACES:
            del told[min(told)]

    def broken(self, said: Commitment) -> str | None:
        """Return what is wrong with a commitment's previous state, as far as known."""
        # A restarted member may begin without a state, but only in its first result of an epoch: it
        # cannot rejoin within one.
        told = self._told.get(said.signer, {})
        place = (said.epoch, said.height)
        since = said.private.since
        last = max(_before(told, place), default=None)
        if since is None:
            within = last is not None and last[0] == said.epoch
            return (
                "its private state begins with nothing in the middle of an epoch"
                if within
                else None
            )
        if last is not None and since < last:
            return "its private state does not continue from its last result"
        if since in told and said.private.before not in told[since]:
            return f"its private state is not the one that it had after round {since[1]} of epoch {since[0]}"
        return None


def _before(told: Iterable[Place], place: Place) -> Iterable[Place]:
    return (one for one in told if one < place)
