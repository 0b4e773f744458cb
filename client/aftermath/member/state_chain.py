"""The chain of private optimizer states: each result's state continues from the last one's.

A commitment names the member's earlier commitment that its state continues from. If this member
received that one, its root must match, and no other received result may lie between. Announcements
get lost, so a missing commitment is a fault only if the member owed no result in that round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from aftermath.rules.announcements import Commitment

_PLACES = 8
"""Number of rounds remembered per member. Later commitments can name only recent ones."""

Place = tuple[int, int]


class StateChain:
    """The last state roots that each member committed to."""

    def __init__(self) -> None:
        self._roots: dict[bytes, dict[Place, set[bytes]]] = {}
        self._owing: dict[int, int] = {}
        """Bits of the seats that owe a result, by height in the current epoch."""
        self._epoch = -1
        self._starts_empty = False

    def begin(self, epoch: int, *, starts_empty: bool = False) -> None:
        """Keep only the roots of the epoch before `epoch`, from which its results can continue.

        If `starts_empty` (`Run.starts_empty`), keep none, and refuse states of other epochs.
        """
        self._epoch = epoch
        self._owing.clear()
        self._starts_empty = starts_empty
        if starts_empty:
            self._roots.clear()
        for signer, roots in list(self._roots.items()):
            recent = {
                epoch_round: afters
                for epoch_round, afters in roots.items()
                if epoch_round[0] == epoch - 1
            }
            if recent:
                self._roots[signer] = recent
            else:
                del self._roots[signer]

    def open(self, height: int, owing: Collection[int]) -> None:
        """Record which seats owe a result in a round of the current epoch."""
        self._owing[height] = sum(1 << seat for seat in owing)

    def hear(self, commitment: Commitment) -> None:
        """Record a commitment's root. If a signer commits to two for one round, keep both."""
        roots = self._roots.setdefault(commitment.signer, {})
        roots.setdefault((commitment.epoch, commitment.height), set()).add(commitment.private.after)
        if len(roots) > _PLACES:
            del roots[min(roots)]

    def fault(self, commitment: Commitment) -> str | None:
        """Return what is wrong with a commitment's previous state, or None if nothing is known."""
        # A restarted member may begin without a state, but only in its first result of an epoch: it
        # cannot rejoin within one.
        roots = self._roots.get(commitment.signer, {})
        current = (commitment.epoch, commitment.height)
        since = commitment.private.since
        last = max(_before(roots, current), default=None)
        if since is None:
            within = last is not None and last[0] == commitment.epoch
            return "its optimizer state starts empty in the middle of an epoch" if within else None
        if since >= current:
            return "its optimizer state comes from a later round"
        # A state of the last epoch may be invented.
        if self._starts_empty and since[0] != commitment.epoch:
            return "its optimizer state comes from another epoch"
        # Such a round trains no state, so nothing would limit what the member invents.
        owing = self._owing.get(since[1]) if since[0] == self._epoch else None
        if owing is not None and not owing >> commitment.seat & 1:
            return "its optimizer state comes from a round in which it owed no result"
        if last is not None and since < last:
            return "its optimizer state does not continue from its last result"
        if since in roots and commitment.private.before not in roots[since]:
            return f"its optimizer state is not the one after round {since[1]} of epoch {since[0]}"
        return None


def _before(rounds: Iterable[Place], current: Place) -> Iterable[Place]:
    return (earlier for earlier in rounds if earlier < current)
