"""What members have reported so far: the progress of each, and whether their replicas are equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aftermath.events import event_types
from aftermath.events.history import EventHistory, Share, mean
from aftermath.events.progress import Progress, phase
from aftermath.events.reader import EventReader, EventRecord


@dataclass
class MemberProgress:
    """One member, over all of its processes."""

    name: str
    tier: int
    state: str = "starting"
    step: int = 0
    finished: bool = False
    """Whether the member has seen the run's end."""
    loss: float | None = None
    trained: bool = False
    """Whether its newest process has reported a loss."""
    tokens_per_sec: float = 0.0
    seat: int | None = None
    sources: list[str] = field(default_factory=list)
    traffic: list[event_types.Traffic | None] = field(default_factory=list)
    """The last traffic report of every process of this member."""
    rounds: set[int] = field(default_factory=set)
    returned: int | None = None
    """The first step that this member trained after its process was restarted."""
    came_back_with: str | None = None
    """Where that process first got the model from."""
    warnings: list[str] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    def total(self, counted: Callable[[event_types.Traffic], int]) -> int:
        """Return a counter's sum over this member's processes."""
        return sum(counted(report) for report in self.traffic if report is not None)


class RunProgress:
    """Follows the events of all members."""

    def __init__(self, members: list[MemberProgress]) -> None:
        self.members = members
        self.history = EventHistory(member_of)
        self.hashes: dict[tuple[int, int, int, int], dict[str, str]] = defaultdict(dict)
        """Each member's hash by epoch, round (-1: its end), step and level."""
        self.first_loss_at: float | None = None
        self._reader: EventReader | None = None
        self.state = "being started"
        """The run's state in the newest report of any member."""

    def follow(self, directory: Path) -> None:
        """Read events from this directory, with a subdirectory per member."""
        directory.mkdir(parents=True, exist_ok=True)
        self._reader = EventReader([directory])

    def read(self, now: float) -> list[EventRecord]:
        """Read and return new events."""
        fresh = list(self._reader.read() if self._reader else ())
        for record in fresh:
            self._take(record, now)
        return fresh

    def _take(self, record: EventRecord, now: float) -> None:
        member = next(member for member in self.members if member.name == member_of(record))
        event = record.event
        self.history.take(record)
        member.state = phase(event) or member.state
        member.progress.take(event)
        if isinstance(
            event,
            event_types.StateChanged
            | event_types.RoundStarted
            | event_types.CooldownStarted
            | event_types.RunFinished,
        ):
            self.state = member.state
        match event:
            case event_types.MemberStarted():
                member.traffic.append(None)
            case event_types.Joined():
                member.seat = event.seat
            case event_types.ModelReady():
                member.sources.append(event.source)
                if member.came_back_with is None and len(member.traffic) > 1:
                    member.came_back_with = event.source
            case event_types.ShareTrained():
                self._trained(member, event, now)
            case event_types.Applied() | event_types.CooldownStarted():
                member.step = max(member.step, event.step)
                height = event.height if isinstance(event, event_types.Applied) else -1
                for level, digest in event.hashes.items():
                    self.hashes[event.epoch, height, event.step, level][member.name] = digest
            case event_types.Traffic():
                member.traffic[-1] = event
            case event_types.RunFinished():
                member.finished = True
            case event_types.Warning() | event_types.Error():
                member.warnings.append(event.message)

    def _trained(self, member: MemberProgress, event: event_types.ShareTrained, now: float) -> None:
        member.loss = event.loss
        member.tokens_per_sec = event.tokens_per_sec
        member.trained = True
        member.rounds.add(event.step)
        if member.returned is None and len(member.traffic) > 1:
            member.returned = event.step
        if self.first_loss_at is None:
            self.first_loss_at = now

    # --- results ---

    @property
    def steps(self) -> int:
        """Return the newest step that any member trained."""
        return max(self.history.shares, default=0)

    @property
    def progress(self) -> Progress:
        """Return the progress of the member that is furthest."""
        return max((member.progress for member in self.members), key=lambda progress: progress.step)

    def tier_losses(self, last: int) -> dict[int, float]:
        """Return every tier's mean loss over its newest `last` steps."""
        shares_by_tier: dict[int, list[Share]] = defaultdict(list)
        for _, shares in sorted(self.history.shares.items()):
            for share in shares.values():
                shares_by_tier[share.tier].append(share)
        return {tier: mean(shares[-last:]) for tier, shares in shares_by_tier.items()}

    def replica_checks(self) -> tuple[int, list[str]]:
        """Return how many pairs of replicas were compared, and where two differed."""
        checks = 0
        differing = []
        for (_, _, step, level), level_hashes in sorted(self.hashes.items()):
            checks += max(0, len(level_hashes) - 1)
            if len(set(level_hashes.values())) > 1:
                differing.append(f"level {level} at step {step}: {level_hashes}")
        return checks, differing


def member_of(record: EventRecord) -> str:
    """Return the name of the member an event comes from: its directory."""
    return record.path.parent.name
