"""What the member's own process tells the other ranks to do, one order after the other."""

from __future__ import annotations

from typing import Any

import msgspec


class Join(msgspec.Struct, frozen=True):
    """What a rank is started with."""

    rank: int
    data: int
    tensor: int
    device: str
    threads: int
    store: str
    """A file by which the ranks find each other."""


class Make(msgspec.Struct, frozen=True, tag=True):
    """Make the network of a tier."""

    config: dict[str, Any]
    """As in `config.json`."""
    tier: int
    micro_batch: int
    recompute: bool
    """Whether layers are computed twice."""
    bf16: bool
    """Whether products are computed in bf16."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Take a share of this shape, and the weights at which it is to be trained; both follow."""

    shape: tuple[int, ...]


class Step(msgspec.Struct, frozen=True, tag=True):
    """Train on the micro-batches from this number on, one for each data-parallel rank."""

    first: int


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Tell the losses, and put the gradients together."""


Order = Make | Begin | Step | Gather
