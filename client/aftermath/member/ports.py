"""The dependencies of a member's parts: its ports, its role in the run, its threads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aftermath.base.concurrency import Worker
from aftermath.coordinator.ports import Clock, Coordinator
from aftermath.events.stream import Events
from aftermath.member.feed import RunFeed
from aftermath.member.stall_detector import StallDetector
from aftermath.optim.schema import Schema
from aftermath.p2p.transport import Transport


class Desync(Exception):
    """This member missed something that it cannot recover. It joins again in the next epoch."""


@dataclass(frozen=True)
class Ports:
    """One member's interfaces to the outside: chain, peers, clock and events."""

    coordinator: Coordinator
    feed: RunFeed
    """The coordinator's newest view."""
    transport: Transport
    clock: Clock
    stall_detector: StallDetector
    events: Events


@dataclass(frozen=True)
class Role:
    """One member's role in one run."""

    run_id: str
    schema: Schema
    tier: int
    p2p_secret: bytes
    device: torch.device | None = None
    """Device of the replica and of votes. None: the CPU."""

    @property
    def levels(self) -> range:
        """Return the levels that this member holds."""
        return range(self.tier, self.schema.state.levels)


@dataclass(frozen=True)
class Workers:
    """The threads of one member."""

    compute: Worker
    """Owns the replica."""
    decode: Worker
    """Checks and decodes peers' payloads."""
    upload: Worker
    """Uploads checkpoints to the Hub."""
    write: Worker
    """Writes result files."""
    read: Worker
    """Reads the sequences of a share."""
    state: Worker
    """Hashes and copies the optimizer state while no share is trained."""
    audit: Worker
    """Replays shares of other members."""
