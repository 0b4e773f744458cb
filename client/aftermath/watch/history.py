"""One run's history as its members' events tell it: losses by step and tier, epochs, bytes, who went and came back.

Decided: it is the same from one member's files or from all; the more members' files there are, the more shares of every
step it knows. What happened to members is a mark at a step: plots and reports draw it there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from aftermath.watch import kinds
from aftermath.watch.comings import Comings
from aftermath.watch.lines import short
from aftermath.watch.plot import Curve
from aftermath.watch.reader import EventRecord


@dataclass(frozen=True, slots=True)
class Share:
    """What a member's share of a step came to."""

    tier: int
    loss: float
    """Nats per token."""
    tokens: int


class History:
    """Takes events in the order in which they are read. `name` is what a member is called in marks."""

    def __init__(self, name: Callable[[EventRecord], str] = lambda told: short(told.about)) -> None:
        self.shares: dict[int, dict[str, Share]] = defaultdict(dict)
        """By step and wallet."""
        self.epochs: dict[int, int] = {}
        """The first step that was seen of each epoch."""
        self._comings = Comings(name)
        self._sent: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._counted: dict[str, int] = defaultdict(int)
        """Bytes sent, as a member's process last counted."""

    @property
    def marks(self) -> list[tuple[int, str]]:
        """What happened to members, and at which step."""
        return self._comings.marks

    def take(self, told: EventRecord) -> None:
        """Learn from an event."""
        wallet, event = told.about.wallet, told.event
        self._comings.take(told)
        match event:
            case kinds.Started() | kinds.RunFound():
                self._counted[wallet] = 0
            case kinds.Round():
                self.epochs[event.epoch] = min(event.step, self.epochs.get(event.epoch, event.step))
            case kinds.Trained():
                if event.loss is not None:
                    self.shares[event.step][wallet] = Share(told.about.tier, event.loss, event.tokens)
            case kinds.Traffic():
                step = self._comings.step_of(wallet)
                self._sent[told.about.tier][step] += max(0, event.sent - self._counted[wallet])
                self._counted[wallet] = event.sent

    # --- what it comes to -----------------------------------------------------------------------------------------

    def loss_curve(self) -> Curve:
        """(step, loss over all tokens of the step)."""
        return [(step, mean(list(shares.values()))) for step, shares in sorted(self.shares.items())]

    def loss_by_tier(self) -> dict[int, Curve]:
        """The same of each tier's shares alone."""
        found: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for step, shares in sorted(self.shares.items()):
            for tier in {share.tier for share in shares.values()}:
                found[tier].append((step, mean([share for share in shares.values() if share.tier == tier])))
        return dict(sorted(found.items()))

    def sent_by_tier(self) -> dict[int, Curve]:
        """(step, bytes that all members of the tier have sent to peers until then)."""
        curves: dict[int, Curve] = {}
        for tier, sent in sorted(self._sent.items()):
            total, curve = 0, []
            for step, more in sorted(sent.items()):
                total += more
                curve.append((step, float(total)))
            curves[tier] = curve
        return curves


def mean(shares: list[Share]) -> float:
    """The loss over all their tokens."""
    return sum(share.loss * share.tokens for share in shares) / max(1, sum(share.tokens for share in shares))
