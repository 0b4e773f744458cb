"""What the demo has seen so far, put together from the events of its members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aftermath.watch import kinds
from aftermath.watch.phase import phase
from aftermath.watch.progress import Progress


@dataclass
class MemberStory:
    """One member, over all of its processes."""

    name: str
    tier: int
    state: str = "starting"
    step: int = 0
    loss: float | None = None
    tokens_per_sec: float = 0.0
    slot: int | None = None
    sources: list[str] = field(default_factory=list)
    traffic: list[kinds.Traffic | None] = field(default_factory=list)
    """The last traffic report of every process of this member."""
    rounds: set[int] = field(default_factory=set)
    returned: int | None = None
    """The first step that a later process of this member trained."""
    came_back_with: str | None = None
    """Where that process had the model from, at first."""
    warnings: list[str] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    def total(self, counted: Callable[[kinds.Traffic], int]) -> int:
        """A counter summed over this member's processes."""
        return sum(counted(report) for report in self.traffic if report is not None)


class Story:
    """Follows the event files of all members."""

    def __init__(self, members: list[MemberStory]) -> None:
        self.members = members
        self.losses: dict[int, dict[str, tuple[float, int]]] = defaultdict(dict)
        self.hashes: dict[tuple[int, int, int, int], dict[str, str]] = defaultdict(dict)
        """By epoch, round (-1: its end), step and level: the hash that each member told."""
        self.first_loss_at: float | None = None
        self.marks: list[tuple[int, str]] = []  # (step, what was done to the run then)
        self._files: dict[Path, tuple[MemberStory, int]] = {}

    def watch(self, directory: Path, member: MemberStory) -> None:
        """Take in a directory's event files, now and whenever `read` is called."""
        for path in sorted(directory.glob("*.jsonl")):
            self._files.setdefault(path, (member, 0))

    def read(self, now: float) -> bool:
        """Take in what was written since the last time; True if there was anything."""
        fresh = False
        for path, (member, offset) in list(self._files.items()):
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data.rfind(b"\n") + 1
            if offset == 0 and whole:
                member.traffic.append(None)
            for line in data[:whole].splitlines():
                self._take(member, msgspec.json.decode(line, type=kinds.MEMBER_EVENTS), now)
                fresh = True
            self._files[path] = (member, offset + whole)
        return fresh

    def _take(self, member: MemberStory, event: kinds.Event, now: float) -> None:
        member.state = phase(event) or member.state
        member.progress.take(event)
        match event:
            case kinds.Joined():
                member.slot = event.slot
            case kinds.Model():
                member.sources.append(event.source)
                if member.came_back_with is None and len(member.traffic) > 1:
                    member.came_back_with = event.source
            case kinds.Trained():
                self._trained(member, event, now)
            case kinds.Applied() | kinds.Cooldown():
                member.step = max(member.step, event.step)
                height = event.height if isinstance(event, kinds.Applied) else -1
                for level, digest in event.hashes.items():
                    self.hashes[event.epoch, height, event.step, level][member.name] = digest
            case kinds.Traffic():
                member.traffic[-1] = event
            case kinds.Warning() | kinds.Error():
                member.warnings.append(event.message)

    def _trained(self, member: MemberStory, event: kinds.Trained, now: float) -> None:
        member.loss, member.tokens_per_sec = event.loss, event.tokens_per_sec
        member.rounds.add(event.step)
        if member.returned is None and len(member.traffic) > 1:
            member.returned = event.step
        if event.loss is not None:
            self.losses[event.step][member.name] = event.loss, event.tokens
        if self.first_loss_at is None:
            self.first_loss_at = now

    # --- findings -----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The newest step anybody trained."""
        return max(self.losses, default=0)

    @property
    def progress(self) -> Progress:
        """How far the run is, as the member knows it that has seen most of it."""
        return max((member.progress for member in self.members), key=lambda progress: progress.step)

    def tier_losses(self, last: int) -> dict[int, float]:
        """The mean loss of every tier, over its newest `last` steps."""
        found: dict[int, list[tuple[float, int]]] = defaultdict(list)
        tiers = {member.name: member.tier for member in self.members}
        for _, shares in sorted(self.losses.items()):
            for name, share in shares.items():
                found[tiers[name]].append(share)
        means = {}
        for tier, parts in found.items():
            newest = parts[-last:]
            means[tier] = sum(loss * count for loss, count in newest) / sum(count for _, count in newest)
        return means

    def loss_curve(self) -> list[tuple[int, float]]:
        """(step, loss over all tokens of the step)."""
        curve = []
        for step, parts in sorted(self.losses.items()):
            tokens = sum(count for _, count in parts.values())
            curve.append((step, sum(loss * count for loss, count in parts.values()) / tokens))
        return curve

    def replica_checks(self) -> tuple[int, list[str]]:
        """How many pairs of replicas were compared, and where two differed."""
        checks, differing = 0, []
        for (_, _, step, level), found in sorted(self.hashes.items()):
            checks += max(0, len(found) - 1)
            if len(set(found.values())) > 1:
                differing.append(f"level {level} at step {step}: {found}")
        return checks, differing
