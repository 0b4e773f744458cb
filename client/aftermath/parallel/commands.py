"""Commands of the member's own process to the other ranks."""

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
    bf16: bool
    """Whether products are computed in bf16."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Take a share of this shape, and the weights at which it is to be trained; both follow."""

    shape: tuple[int, ...]
    micro_batch: int
    recompute: bool
    """Whether layers are computed twice."""


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Train on the share's first sequence, and tell what memory that takes and what there is."""


class TrainMicroBatches(msgspec.Struct, frozen=True, tag=True):
    """Train on the micro-batches from this number on, one for each data-parallel rank."""

    first: int


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Return the losses of the last steps, and put the gradients together unless a rank ran out of
    memory.
    """

    steps: int


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Hold a part of the state of a tier's optimizer, of which nothing is learnt yet
    (`parallel.feedback_shard`).
    """

    schema: bytes
    tier: int


class Directions(msgspec.Struct, frozen=True, tag=True):
    """Tell the signs of what was not sent."""


class Choose(msgspec.Struct, frozen=True, tag=True):
    """Take a pseudo-gradient, which is `factor` times what follows, and tell what is to be sent."""

    factor: float


class Weigh(msgspec.Struct, frozen=True, tag=True):
    """Tell the energies of what there was to be sent and of what was, level by level."""


class Digests(msgspec.Struct, frozen=True, tag=True):
    """Tell the digests of the state's blocks."""

    sent: bool
    """Whether something was sent, so that it is remembered."""


class Read(msgspec.Struct, frozen=True, tag=True):
    """Tell the bytes of a tensor of the state."""

    name: str
    start: int
    stop: int


class Copy(msgspec.Struct, frozen=True, tag=True):
    """Tell all of the state."""

    sent: bool


class Restore(msgspec.Struct, frozen=True, tag=True):
    """Take over a state, which follows."""

    sent: bool


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Forget all that was learnt."""


class Mark(msgspec.Struct, frozen=True, tag=True):
    """Copy the moments of the inner optimizer: a share begins."""


class Advance(msgspec.Struct, frozen=True, tag=True):
    """Make a step of every own parameter at the weights and by the gradient of the last pass, and
    give it back.
    """

    rate: float
    factors: tuple[float, ...]
    """By which its gradient is to be scaled, one after the other."""
    without: tuple[str, ...]
    """Parameters that have no gradient, and are not stepped."""


class Settle(msgspec.Struct, frozen=True, tag=True):
    """Drop the copies: the share is trained; or `undo` it, and have them for moments."""

    undo: bool


class MomentDigests(msgspec.Struct, frozen=True, tag=True):
    """Tell the digests of the moments' blocks."""


class MomentBlock(msgspec.Struct, frozen=True, tag=True):
    """Return the bytes of a moment, from the rank that has it."""

    name: str
    start: int
    stop: int


class CopyMoments(msgspec.Struct, frozen=True, tag=True):
    """Tell all moments."""


class TakeMoments(msgspec.Struct, frozen=True, tag=True):
    """Take over moments, which follow."""


class ForgetMoments(msgspec.Struct, frozen=True, tag=True):
    """Continue without moments."""


OfState = Directions | Choose | Weigh | Digests | Read | Copy | Restore | Forget
"""What is told of what was not sent."""
OfMoments = (
    Mark
    | Advance
    | Settle
    | MomentDigests
    | MomentBlock
    | CopyMoments
    | TakeMoments
    | ForgetMoments
)
"""What is told of the inner optimizer."""
Order = Make | Begin | Measure | TrainMicroBatches | Gather | Hold | OfState | OfMoments
