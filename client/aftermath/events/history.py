"""Collect a run's history from its members' events: losses, epochs, bytes, joins and exits.

The more members' files it reads, the more shares of each step it knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from aftermath.events import event_types
from aftermath.events.event_files import process_of
from aftermath.events.plot import Curve
from aftermath.events.progress import levels_named, named_checkpoint
from aftermath.events.reader import EventRecord
from aftermath.events.text import short


@dataclass(frozen=True, slots=True)
class Share:
    """One member's share of a step."""

    tier: int
    loss: float
    """Nats per token."""
    tokens: int


Process = tuple[Path, str]
"""The directory and the common name of the files of one process."""


def process_of_record(record: EventRecord) -> Process:
    """Return the process whose file has the event. An export mixes several processes."""
    return record.path.parent, process_of(record.path)


class EventHistory:
    """Collects events in reading order. `name` returns a member's name for marks."""

    def __init__(
        self, name: Callable[[EventRecord], str] = lambda record: short(record.origin)
    ) -> None:
        self.shares: dict[int, dict[str, Share]] = defaultdict(dict)
        """Shares by step and wallet."""
        self.epochs: dict[int, int] = {}
        """The first step that was seen of each epoch."""
        self._lifecycle = Lifecycle(name)
        self._sent: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._counted: dict[tuple[str, Process], int] = defaultdict(int)
        """Bytes sent, as last reported by each process of a member."""

    @property
    def marks(self) -> list[tuple[int, str]]:
        """What happened to members, by step."""
        return self._lifecycle.marks

    def take(self, record: EventRecord) -> None:
        """Add an event."""
        wallet = record.origin.wallet
        event = record.event
        source = (wallet, process_of_record(record))
        self._lifecycle.take(record)
        match event:
            case event_types.MemberStarted() | event_types.RunFound():
                self._counted[source] = 0
            case event_types.RoundStarted():
                self.epochs[event.epoch] = min(event.step, self.epochs.get(event.epoch, event.step))
            case event_types.ShareTrained():
                if event.loss is not None:
                    self.shares[event.step][wallet] = Share(
                        record.origin.tier, event.loss, event.tokens
                    )
            case event_types.Traffic():
                step = self._lifecycle.step_of(wallet)
                self._sent[record.origin.tier][step] += max(0, event.sent - self._counted[source])
                self._counted[source] = event.sent

    def loss_curve(self) -> Curve:
        """Return (step, loss over all tokens of the step)."""
        return [(step, mean(list(shares.values()))) for step, shares in sorted(self.shares.items())]

    def loss_by_tier(self) -> dict[int, Curve]:
        """Return the loss curve of each tier."""
        curves: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for step, shares in sorted(self.shares.items()):
            for tier in {share.tier for share in shares.values()}:
                curves[tier].append(
                    (step, mean([share for share in shares.values() if share.tier == tier]))
                )
        return dict(sorted(curves.items()))

    def sent_by_tier(self) -> dict[int, Curve]:
        """Return (step, bytes that all members of the tier have sent to peers so far)."""
        curves: dict[int, Curve] = {}
        for tier, sent_by_step in sorted(self._sent.items()):
            total = 0
            curve = []
            for step, count in sorted(sent_by_step.items()):
                total += count
                curve.append((step, float(total)))
            curves[tier] = curve
        return curves


def mean(shares: list[Share]) -> float:
    """Return the loss over all tokens of the shares."""
    return sum(share.loss * share.tokens for share in shares) / max(
        1, sum(share.tokens for share in shares)
    )


@dataclass(slots=True)
class _Member:
    processes: int = 0
    """Earlier processes that joined."""
    just_started: bool = False
    """The process has started and not found the run yet."""
    joined: bool = False
    """The process has joined the run or trained in it."""
    stopping: bool = False
    """The process was asked to stop."""
    ended: bool = True
    """The member's process, or others, reported its end."""
    left: bool = False
    """The process left the run."""
    away: bool = False
    step: int = 0
    seat: int | None = None
    process: Process | None = None
    """The newest process."""
    former: _Member | None = None
    """The member before its newest process, until that one joins, if the former did not end."""


class Lifecycle:
    """Marks at steps where members joined, left, were dropped or came back, or the run went back.

    If a member starts again without an end of its last process, that process is marked as stopped
    if it was stopping, and as disappeared otherwise. A process that ended before it joined has no
    mark. Several members' reports of one incident become one mark. `name` returns a member's name
    in marks.
    """

    def __init__(
        self, name: Callable[[EventRecord], str] = lambda record: short(record.origin)
    ) -> None:
        self.marks: list[tuple[int, str]] = []
        self.newest_step = 0
        self._members: dict[str, _Member] = defaultdict(_Member)
        self._names: dict[str, str] = {}
        self._holders: dict[int, str] = {}
        """The wallet that last joined with each seat, even if its process has ended."""
        self._name = name
        self._round_since = 0
        self._round_step = 0
        """The step of the newest round, which began at `_round_since`."""
        self._trained_step = 0
        """The newest step that a member trained since the run last went back."""

    def step_of(self, wallet: str) -> int:
        """Return the last step in which a member trained its share."""
        return self._members[wallet].step

    def take(self, record: EventRecord) -> None:
        """Add an event."""
        wallet = record.origin.wallet
        event = record.event
        process = process_of_record(record)
        member = self._members[wallet]
        if member.former is not None and process == member.former.process != member.process:
            member = self._undo_start(wallet, member.former)  # the former process is still there
        self._names[wallet] = self._name(record)
        match event:
            case event_types.MemberStarted():
                self._starts(wallet, member, process)
                member.just_started = True
            case event_types.RunFound():
                if not member.just_started:  # only events of this run were read
                    self._starts(wallet, member, process)
                member.just_started = False
            case event_types.Joined():
                member.joined = True
                member.former = None
                member.process = process
                member.seat = event.seat
                if event.seat is not None:
                    self._holders[event.seat] = wallet
            case event_types.ShareTrained():
                self._trained(wallet, event.step, member, losing=event.loss is not None)
            case event_types.Leaving():
                member.stopping = True
            case (
                event_types.Left()
                | event_types.RunFinished()
                | event_types.Error()
                | event_types.Stopped(continues=True)
            ):
                if member.process in (None, process):  # else a refused second process ends
                    self._ends(wallet, event, member)
            case event_types.Dropped():
                for seat in event.seats:
                    self._lost(seat, "dropped")
            case event_types.Ejected():
                self._lost(event.seat, "ejected")
            case event_types.CaseDecided():
                self._lost(event.loser, "ejected")
            case event_types.Kicked():
                self._lost(event.seat, "barred" if event.barred else "removed")
            case event_types.RoundStarted():
                self._round(event)
            case event_types.ModelReady():
                self._loaded(event)
            case event_types.Rewound():
                self._mark(event.step, f"went back from step {event.before}")
                self._round_step = min(self._round_step, event.step)
                self._trained_step = min(self._trained_step, event.step)

    def _round(self, event: event_types.RoundStarted) -> None:
        """Mark that the run went back while no member was there to report it."""
        if event.since <= self._round_since:  # another member has reported this or a later round
            return
        # The two newest steps may repeat although the run did not go back, if nobody attested them.
        if event.step < self._round_step - 1:
            before = max(self._round_step - 1, self._trained_step)
            self._mark(event.step - 1, f"went back from step {before}")
            self._trained_step = event.step - 1
        self._round_since = event.since
        self._round_step = event.step

    def _loaded(self, event: event_types.ModelReady) -> None:
        """Mark that the model went back to a checkpoint, although the run keeps its steps."""
        checkpoint_step = event.checkpoint_step
        if event.lost_levels:
            levels = levels_named(event.lost_levels)
            self._mark(event.step, f"{levels} back to {named_checkpoint(event.lost_to)}")
            return
        if checkpoint_step is None or checkpoint_step >= min(event.step, self.newest_step):
            return
        self._mark(event.step, f"back to the checkpoint of step {checkpoint_step}")

    def _starts(self, wallet: str, member: _Member, process: Process) -> None:
        if not member.ended and member.joined:
            member.former = replace(member, former=None)
            self.marks.append(self._end_mark(wallet, member))
        member.process = process
        member.processes += member.joined
        member.joined = member.stopping = member.left = False
        member.away = member.processes > 0
        member.ended = False

    def _end_mark(self, wallet: str, member: _Member) -> tuple[int, str]:
        what = "stopped" if member.stopping else "disappeared"
        return member.step, f"{self._names[wallet]} {what}"

    def _undo_start(self, wallet: str, former: _Member) -> _Member:
        """Forget a process that started while the former one was there, as if it never had."""
        mark = self._end_mark(wallet, former)
        if mark in self.marks:
            self.marks.remove(mark)
        self._members[wallet] = former
        return former

    def _trained(self, wallet: str, step: int, member: _Member, *, losing: bool) -> None:
        if member.away:
            self.marks.append((step, f"{self._names[wallet]} rejoined"))
            self._forget_former_seats(wallet, member.seat)
        member.away = False
        member.joined = True
        member.former = None
        member.step = step
        self._trained_step = max(self._trained_step, step)
        if losing:
            self.newest_step = max(self.newest_step, step)

    def _ends(self, wallet: str, event: event_types.Event, member: _Member) -> None:
        if isinstance(event, event_types.Error) and not member.joined:
            if member.former is not None:
                self._undo_start(wallet, member.former)
            else:
                member.ended = True
            return
        name = self._names[wallet]
        if isinstance(event, event_types.Left) and not event.finished:
            self.marks.append((member.step, f"{name} left"))
            member.left = True
        elif isinstance(event, event_types.Stopped):
            self.marks.append((member.step, f"{name} stopped"))
        elif isinstance(event, event_types.Error) and not member.left:
            # A member that left and lost steps reports the loss as an error after it left.
            self.marks.append((member.step, f"{name} failed"))
        member.ended = True

    def _lost(self, seat: int, outcome: str) -> None:
        """Mark the loss of another member, whose own events may be missing."""
        wallet = self._holders.get(seat)
        if wallet is None:
            self._mark(self.newest_step, f"seat {seat} {outcome}")
            return
        member = self._members[wallet]
        # A member that is away already has a mark, because its process died or ended before the
        # report.
        if outcome != "dropped" or not (member.ended or member.away):
            self._mark(member.step, f"{self._names[wallet]} {outcome}")
        member.ended = member.away = True

    def _forget_former_seats(self, wallet: str, seat: int | None) -> None:
        """Forget all seats of a member except the newest, because others may take them."""
        self._holders = {
            occupied: holder
            for occupied, holder in self._holders.items()
            if holder != wallet or occupied == seat
        }

    def _mark(self, step: int, text: str) -> None:
        """Add a mark that several members may report."""
        if (step, text) not in self.marks:
            self.marks.append((step, text))
