"""What every part of a member's pipeline is handed: its ports, its identity and the run's fixed facts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from aftermath.coordinator.ports import Clock, Coordinator
from aftermath.data.local import TokenFiles
from aftermath.model.text import Prompt
from aftermath.optim.schema import Schema
from aftermath.p2p.transport import Transport
from aftermath.train.attention import Attention
from aftermath.train.feed import RunFeed
from aftermath.watch.events import Events

T = TypeVar("T")


class Worker(Protocol):
    """Runs a synchronous function away from the event loop: one at a time, in the order asked."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class Desync(Exception):
    """This member has missed something that can no longer be had; it sits the epoch out and joins the next one."""


@dataclass(frozen=True)
class Context:
    """Ports and facts of one member in one run."""

    run_id: str
    coordinator: Coordinator
    transport: Transport
    feed: RunFeed
    clock: Clock
    attention: Attention
    events: Events
    compute: Worker
    """The thread that owns the replica."""
    decode: Worker
    """The thread that checks and decodes what peers sent."""
    upload: Worker
    """The thread that sends checkpoints to the Hub."""
    write: Worker
    """The thread that writes the files of results."""
    p2p_secret: bytes
    schema: Schema
    tier: int
    data: TokenFiles
    hash_replicas: bool
    """Whether to hash the replica after every apply and report it as an event."""
    gradients_dir: Path | None = None
    """Where to keep the results that are applied."""
    optim_stats_steps: int = 0
    """After how many steps to report what the optimizer keeps and sends; 0: never."""
    optimizer_state_dir: Path | None = None
    """Where to keep what the optimizer knows, for a restart."""
    prompt: Prompt | None = None
    """What to continue while the run does not need this member."""

    @property
    def levels(self) -> range:
        """The levels this member holds."""
        return range(self.tier, self.schema.state.levels)
