"""A run's history as its members' events tell it: losses by step and tier, epochs, bytes, who went and came back.

Decided: it is the same from one member's files or from all; the more members' files there are, the more shares of every
step it knows. What happened to members is a mark at a step: plots and reports draw it there. A member that was dropped,
or began anew without having said that it goes, is one that died; nobody else can know why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from aftermath.watch import kinds
from aftermath.watch.lines import short
from aftermath.watch.plot import Curve
from aftermath.watch.reader import Told


@dataclass(frozen=True, slots=True)
class Share:
    """What a member's share of a step came to."""

    tier: int
    loss: float
    """Nats per token."""
    tokens: int


@dataclass(slots=True)
class _Member:
    processes: int = 0
    ended: bool = True
    """Its process said so, or others did."""
    away: bool = False
    step: int = 0
    sent: int = 0
    """As its process last counted."""
    slot: int | None = None


class History:
    """Takes events in the order in which they are read. `name` is what a member is called in marks."""

    def __init__(self, name: Callable[[Told], str] = lambda told: short(told.about)) -> None:
        self.shares: dict[int, dict[str, Share]] = defaultdict(dict)
        """By step and wallet."""
        self.epochs: dict[int, int] = {}
        """The first step that was seen of each epoch."""
        self.marks: list[tuple[int, str]] = []
        self.runs: set[str] = set()
        self._sent: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._members: dict[str, _Member] = defaultdict(_Member)
        self._names: dict[str, str] = {}
        self._name = name

    def take(self, told: Told) -> None:
        """Learn from an event."""
        wallet, event = told.about.wallet, told.event
        member = self._members[wallet]
        self._names[wallet] = self._name(told)
        self.runs.add(told.about.run_id)
        match event:
            case kinds.Started():
                if not member.ended:
                    self._mark(member.step, f"{self._names[wallet]} gone")
                member.away = member.processes > 0
                member.ended, member.sent, member.slot = False, 0, None
                member.processes += 1
            case kinds.Joined():
                member.slot = event.slot
            case kinds.Round():
                self.epochs[event.epoch] = min(event.step, self.epochs.get(event.epoch, event.step))
            case kinds.Trained():
                self._trained(told, event, member)
            case kinds.Traffic():
                self._sent[told.about.tier][member.step] += max(0, event.sent - member.sent)
                member.sent = event.sent
            case kinds.Left() | kinds.Finished() | kinds.Error():
                self._ends(wallet, event, member)
            case kinds.Dropped():
                for slot in event.slots:
                    self._lost(slot, "dropped")
            case kinds.Ejected():
                self._lost(event.slot, "ejected")
            case kinds.Kicked():
                self._lost(event.slot, "barred" if event.barred else "removed")
            case kinds.Rewound():
                self._mark(event.step, f"taken back from step {event.before}")

    def _trained(self, told: Told, event: kinds.Trained, member: _Member) -> None:
        wallet = told.about.wallet
        if member.away:
            self._mark(event.step, f"{self._names[wallet]} back")
        member.away, member.step = False, event.step
        if event.loss is not None:
            self.shares[event.step][wallet] = Share(told.about.tier, event.loss, event.tokens)

    def _ends(self, wallet: str, event: kinds.Event, member: _Member) -> None:
        if isinstance(event, kinds.Left) and not event.finished:
            self._mark(member.step, f"{self._names[wallet]} left")
        elif isinstance(event, kinds.Error):
            self._mark(member.step, f"{self._names[wallet]} failed")
        member.ended = True

    def _lost(self, slot: int, how: str) -> None:
        """Told of another member, which may be one whose events are not here."""
        wallet = next((wallet for wallet, member in self._members.items() if member.slot == slot), None)
        if wallet is None:
            self._mark(max(self.shares, default=0), f"member {slot} {how}")
            return
        member = self._members[wallet]
        if how != "dropped" or not member.ended:
            self._mark(member.step, f"{self._names[wallet]} {how}")
        member.ended = member.away = True

    def _mark(self, step: int, text: str) -> None:
        if (step, text) not in self.marks:  # several members tell the same
            self.marks.append((step, text))

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
