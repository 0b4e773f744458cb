"""Rebuild a run from its members' events: snapshots, curves, marks and members.

Files may come from strangers, so members, epochs and marks are limited, and texts are cut.
"""

from __future__ import annotations

from collections import defaultdict, deque

import msgspec

from aftermath.events import event_types
from aftermath.events.history import Lifecycle
from aftermath.events.reader import EventRecord
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.state import RunState
from aftermath.ui.web.snapshot import Figures, MemberSnapshot, RunSnapshot

MOST_EPOCHS = 400
MOST_MARKS = 200
_MOST_MEMBERS = 4 * MAX_MEMBERS  # over the whole run; fewer are in it at once
_MOST_TEXT = 64
_TAKES_PART = (
    event_types.RoundStarted,
    event_types.ShareTrained,
    event_types.Applied,
    event_types.ModelReady,
)
_STANDINGS: dict[type[event_types.Event], str] = {
    event_types.MemberStarted: "starting",
    event_types.Joined: "joins the next epoch",
    event_types.Waiting: "waiting for the next epoch",
    event_types.Leaving: "leaving",
    event_types.Left: "left",
    event_types.RunFinished: "finished",
    event_types.Error: "failed",
}


class EventSnapshots:
    """Collects the events of one run in reading order.

    Each state and each round begins a snapshot, when the first member reports it. Members are shown
    as they last reported.
    """

    def __init__(self, run_id: str, losses: Losses) -> None:
        self._run_id = run_id
        self._losses = losses
        self.sent = Sent()
        self.epochs: dict[int, int] = {}
        """The first step of each reported epoch, for the newest MOST_EPOCHS."""
        self.members: dict[str, MemberSnapshot] = {}
        """Members by wallet, as they last reported."""
        self.event_count = 0
        """Number of events."""
        self._comings = Lifecycle()
        self._total_steps = 0
        self._since = 0
        self._of_that_second: set[tuple[int, str]] = set()

    @property
    def marks(self) -> list[tuple[int, str]]:
        """The newest marks of what happened to members, each at its step."""
        return list(deque(self._comings.marks, MOST_MARKS))

    def take(self, record: EventRecord) -> RunSnapshot | None:
        """Add an event. Return the snapshot that it begins, if any."""
        wallet = record.origin.wallet[:_MOST_TEXT]
        if wallet not in self.members and len(self.members) >= _MOST_MEMBERS:
            return None
        if wallet != record.origin.wallet:
            record = msgspec.structs.replace(
                record, origin=msgspec.structs.replace(record.origin, wallet=wallet)
            )
        self.event_count += 1
        self._comings.take(record)
        self._know(wallet, record)
        match record.event:
            case event_types.StateChanged() as state if self._is_new(
                state.since, state.epoch, state.state
            ):
                self._total_steps = state.total_steps
                return self._moment(record, state.state, state.epoch, None, state.step)
            case event_types.RoundStarted() as begun if self._is_new(
                begun.since, begun.epoch, str(begun.height)
            ):
                self._epoch(begun)
                return self._moment(
                    record,
                    RunState.ROUND_TRAIN.name,
                    begun.epoch,
                    begun.height,
                    max(0, begun.step - 1),
                )
        return None

    def _is_new(self, since: int, epoch: int, state: str) -> bool:
        """Return whether no other member has reported this or a later state."""
        if since < self._since or ((epoch, state) in self._of_that_second and since == self._since):
            return False
        if since > self._since:
            self._since = since
            self._of_that_second.clear()
        self._of_that_second.add((epoch, state))
        return True

    def _epoch(self, begun: event_types.RoundStarted) -> None:
        if begun.epoch not in self.epochs:
            self.epochs[begun.epoch] = begun.step
            if len(self.epochs) > MOST_EPOCHS:
                del self.epochs[min(self.epochs)]

    def _know(self, wallet: str, record: EventRecord) -> None:
        event = record.event
        previous = self.members.get(wallet)
        member = previous or MemberSnapshot(wallet, record.origin.tier, "")
        if isinstance(event, _TAKES_PART):
            member = msgspec.structs.replace(member, standing="takes part", takes_part=True)
        elif (standing := _STANDINGS.get(type(event))) is not None:
            member = msgspec.structs.replace(member, standing=standing, takes_part=False)
        figures = member.figures
        match event:
            case event_types.MemberStarted():
                figures = Figures()
                member = msgspec.structs.replace(member, tier=record.origin.tier, seat=None)
            case event_types.Joined():
                member = msgspec.structs.replace(member, seat=event.seat, weight=event.weight)
            case event_types.ShareTrained():
                member = msgspec.structs.replace(
                    member, seen=f"epoch {event.epoch}, round {event.height}"
                )
                figures = msgspec.structs.replace(
                    figures,
                    step=event.step,
                    loss=event.loss,
                    tokens_per_second=event.tokens_per_sec,
                )
                if event.loss is not None:
                    self._losses.add_event_loss(
                        record.origin.tier, event.step, event.loss, event.tokens
                    )
            case event_types.Traffic():
                self.sent.add(
                    record.origin.tier,
                    self._comings.step_of(wallet),
                    event.sent - (figures.sent or 0),
                )
                figures = msgspec.structs.replace(figures, sent=event.sent, received=event.received)
            case event_types.Dropped():
                self._lost(event.seats, "dropped")
            case event_types.Ejected():
                self._lost([event.seat], "ejected")
            case event_types.CaseDecided():
                self._lost([event.loser], "ejected")
        self.members[wallet] = msgspec.structs.replace(member, figures=figures)

    def _lost(self, seats: list[int], how: str) -> None:
        for wallet, member in self.members.items():
            if member.seat in seats:
                self.members[wallet] = msgspec.structs.replace(
                    member, standing=how, takes_part=False
                )

    def _moment(
        self, record: EventRecord, state: str, epoch: int, height: int | None, step: int
    ) -> RunSnapshot:
        return RunSnapshot(
            at=round(record.at.timestamp() * 1000),
            source="events",
            run_id=self._run_id,
            state=state.lower()[:_MOST_TEXT],
            epoch=epoch,
            round=height,
            step=step,
            total_steps=self._total_steps,
            members=tuple(list(self.members.values())[:MAX_MEMBERS]),
        )


MOST_PLACES = 2048
MOST_POINTS = 400
_MOST_STEP = 1 << 40
_MOST_STATED = 100.0  # nats per token; random guesses among a million tokens give 14

Points = list[tuple[int, float]]


class _Curve:
    """Sums of values and weights by step. Each bin covers `1 << shift` steps.

    When there are too many bins, pairs are merged into their weighted mean.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, float, float]] = {}
        self._shift = 0

    def add(self, step: int, value: float, weight: float) -> None:
        if not 0 <= step < _MOST_STEP:
            return
        last, total, weights = self._places.get(step >> self._shift, (0, 0.0, 0.0))
        self._places[step >> self._shift] = (
            max(last, step),
            total + value * weight,
            weights + weight,
        )
        while len(self._places) > MOST_PLACES:
            self._halve()

    def _halve(self) -> None:
        buckets, self._places = self._places, {}
        self._shift += 1
        for index, (last, total, weights) in buckets.items():
            other = self._places.get(index >> 1, (0, 0.0, 0.0))
            self._places[index >> 1] = max(last, other[0]), total + other[1], weights + other[2]

    def sums(self) -> list[tuple[int, float, float]]:
        return sorted(self._places.values())


class Losses:
    """Losses by tier: from events, or from attestations for tiers without events.

    Losses in attestations are rounded to a thousandth and not proven. Impossible tiers, steps and
    losses are ignored, because one of them would flatten all curves.
    """

    def __init__(self) -> None:
        self._from_events: dict[int, _Curve] = defaultdict(_Curve)
        self._stated: dict[int, _Curve] = defaultdict(_Curve)

    def add_event_loss(self, tier: int, step: int, loss: float, tokens: int) -> None:
        """Add a loss from an event."""
        if 0 <= tier < MAX_LEVELS:
            self._from_events[tier].add(step, loss, max(1, tokens))

    def stated(self, tier: int, step: int, loss: float) -> None:
        """Add a loss from an attestation on chain."""
        if 0 <= loss <= _MOST_STATED:
            self._stated[tier].add(step, loss, 1.0)

    def by_tier(self) -> dict[int, Points]:
        """Return at most MOST_POINTS (step, loss) points of each tier."""
        curves = {**self._stated, **self._from_events}
        return {tier: _means(curve.sums()) for tier, curve in sorted(curves.items())}


class Sent:
    """Bytes that members of a tier have sent to peers, by step."""

    def __init__(self) -> None:
        self._more: dict[int, _Curve] = defaultdict(_Curve)

    def add(self, tier: int, step: int, more: int) -> None:
        """Record that a member of the tier has sent `more` bytes."""
        if 0 <= tier < MAX_LEVELS and more > 0:
            self._more[tier].add(step, float(more), 1.0)

    def by_tier(self) -> dict[int, Points]:
        """Return (step, bytes so far) of each tier."""
        curves: dict[int, Points] = {}
        for tier, curve in sorted(self._more.items()):
            total = 0.0
            points = []
            for step, more, _ in curve.sums():
                total += more
                points.append((step, total))
            curves[tier] = [points[end] for end in _ends(len(points))]
        return curves


def _means(sums: list[tuple[int, float, float]]) -> Points:
    points = []
    begin = 0
    for end in _ends(len(sums)):
        part = sums[begin : end + 1]
        points.append(
            (
                part[-1][0],
                sum(total for _, total, _ in part) / sum(weights for _, _, weights in part),
            )
        )
        begin = end + 1
    return points


def _ends(count: int) -> list[int]:
    """Return the ends of at most MOST_POINTS groups of `count` points. The last one always ends a
    group.
    """
    width = -(-count // MOST_POINTS) or 1
    return sorted({*range(width - 1, count, width), count - 1} - {-1})
