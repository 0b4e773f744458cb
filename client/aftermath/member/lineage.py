"""Whether what members' optimizers know goes on from result to result, as the roots in their commitments say.

Choices:
- a commitment names the one of the same member from which its state goes on. Where that one has been heard, the root
  before must be its root after; and none that was heard may lie between the two;
- with nothing a member begins in its first result of an epoch at the latest: it cannot restart within one. That it does
  so is its right, since whoever restarts or missed something has no state, and everybody can see it;
- what was not heard cannot be compared, and is no fault: announcements get lost. So a member that was not heard by a
  witness may tell it anything, once.
"""

from __future__ import annotations

from collections.abc import Iterable

from aftermath.rules.commitment import Commitment

_PLACES = 8
"""As many rounds are remembered of a member: those that others still talk of, and some before."""

Place = tuple[int, int]


class Lineage:
    """The roots that members told last, of results that they had to deliver."""

    def __init__(self) -> None:
        self._told: dict[bytes, dict[Place, set[bytes]]] = {}

    def begin(self, epoch: int) -> None:
        """Forget what this epoch's rounds cannot go on from: an attempt at the same, and all before the last."""
        for signer, told in list(self._told.items()):
            kept = {place: afters for place, afters in told.items() if place[0] == epoch - 1}
            if kept:
                self._told[signer] = kept
            else:
                del self._told[signer]

    def hear(self, said: Commitment) -> None:
        """Remember a commitment's root; two of one place are the fault of who signed them."""
        told = self._told.setdefault(said.signer, {})
        told.setdefault((said.epoch, said.height), set()).add(said.private.after)
        if len(told) > _PLACES:
            del told[min(told)]

    def broken(self, said: Commitment) -> str | None:
        """What is wrong with where a commitment's state comes from, as far as that is known."""
        told, place, since = self._told.get(said.signer, {}), (said.epoch, said.height), said.private.since
        last = max(_before(told, place), default=None)
        if since is None:
            within = last is not None and last[0] == said.epoch
            return "its private state begins with nothing in the middle of an epoch" if within else None
        if last is not None and since < last:
            return "its private state does not go on from its last result"
        if since in told and said.private.before not in told[since]:
            return f"its private state is not the one that it had after round {since[1]} of epoch {since[0]}"
        return None


def _before(told: Iterable[Place], place: Place) -> Iterable[Place]:
    return (one for one in told if one < place)
