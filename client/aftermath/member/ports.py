"""What the parts of a member are handed: its ports, its role in the run, its threads.

Decided: a part is given these and not what lies behind them, and no part is given what it does not use.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aftermath.base.worker import Worker
from aftermath.coordinator.ports import Clock, Coordinator
from aftermath.member.attention import Attention
from aftermath.member.feed import RunFeed
from aftermath.optim.schema import Schema
from aftermath.p2p.transport import Transport
from aftermath.watch.events import Events


class Desync(Exception):
    """This member has missed something that can no longer be had; it sits the epoch out and joins the next one."""


@dataclass(frozen=True)
class Ports:
    """Everything outside of one member."""

    coordinator: Coordinator
    feed: RunFeed
    """What the coordinator last said."""
    transport: Transport
    clock: Clock
    attention: Attention
    events: Events


@dataclass(frozen=True)
class Role:
    """What one member is in one run."""

    run_id: str
    schema: Schema
    tier: int
    p2p_secret: bytes
    device: torch.device | None = None
    """Where the replica is, and votes may stay; None: on the CPU."""

    @property
    def levels(self) -> range:
        """The levels this member holds."""
        return range(self.tier, self.schema.state.levels)


@dataclass(frozen=True)
class Workers:
    """The threads of one member."""

    compute: Worker
    """Owns the replica."""
    decode: Worker
    """Checks and decodes what peers sent."""
    upload: Worker
    """Sends checkpoints to the Hub."""
    write: Worker
    """Writes the files of results."""
    read: Worker
    """Reads the sequences of a share."""
    state: Worker
    """Hashes and copies what the optimizer knows, while no share is trained."""
