"""Commands of the member's own process to the other ranks."""

from __future__ import annotations

from typing import Any

import msgspec


class Join(msgspec.Struct, frozen=True):
    """Arguments with which a rank is started."""

    rank: int
    data: int
    tensor: int
    device: str
    threads: int
    store: str
    """Path of the file through which the ranks find each other."""


class BuildNetwork(msgspec.Struct, frozen=True, tag=True):
    """Build the network of a tier."""

    config: dict[str, Any]
    """The model config, with the keys of `config.json`."""
    tier: int
    bf16: bool
    """Whether matrix products are computed in bf16."""


class BeginShare(msgspec.Struct, frozen=True, tag=True):
    """Receive a share of this shape and the weights at which to train it. Both follow."""

    shape: tuple[int, ...]
    micro_batch: int
    recompute: bool
    """Whether layers are computed again in the backward pass."""


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Train on the share's first sequence. Report the memory that this took and the free memory."""


class TrainMicroBatches(msgspec.Struct, frozen=True, tag=True):
    """Train on one micro-batch per data-parallel rank, starting with number `first`."""

    first: int


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Return the losses of the last steps, and put the gradients together unless a rank ran out of
    memory.
    """

    steps: int


class HoldState(msgspec.Struct, frozen=True, tag=True):
    """Allocate this rank's part of a tier's optimizer state (`parallel.feedback_shard`)."""

    schema: bytes
    tier: int


class Directions(msgspec.Struct, frozen=True, tag=True):
    """Send the signs of the residual."""


class Compress(msgspec.Struct, frozen=True, tag=True):
    """Add `factor` times the tensors that follow to the residual, and send the selected entries."""

    factor: float


class MeasureEnergies(msgspec.Struct, frozen=True, tag=True):
    """Send the energies before and after selection, by level."""


class StateDigests(msgspec.Struct, frozen=True, tag=True):
    """Send the digests of the state's blocks."""

    sent: bool
    """Whether the state includes the last result sent."""


class ReadState(msgspec.Struct, frozen=True, tag=True):
    """Send bytes `start` to `stop` of a tensor of the state."""

    name: str
    start: int
    stop: int


class CopyState(msgspec.Struct, frozen=True, tag=True):
    """Send the whole state."""

    sent: bool


class RestoreState(msgspec.Struct, frozen=True, tag=True):
    """Replace the state by the tensors that follow."""

    sent: bool


class ForgetState(msgspec.Struct, frozen=True, tag=True):
    """Reset the state."""


class CopyForUndo(msgspec.Struct, frozen=True, tag=True):
    """Copy the moments of the inner optimizer at the start of a share."""


class StepParameters(msgspec.Struct, frozen=True, tag=True):
    """Step this rank's parameters with the gradients of the last pass, and send them back."""

    rate: float
    factors: tuple[float, ...]
    """Factors to multiply each gradient by, in this order."""
    without: tuple[str, ...]
    """Parameters without a gradient, which are not stepped."""


class EndShare(msgspec.Struct, frozen=True, tag=True):
    """End a share: drop the copies of the moments, or restore them if `undo` is set."""

    undo: bool


class MomentDigests(msgspec.Struct, frozen=True, tag=True):
    """Send the digests of the moments' blocks."""


class MomentBlock(msgspec.Struct, frozen=True, tag=True):
    """Send bytes `start` to `stop` of a moment, from the rank that holds it."""

    name: str
    start: int
    stop: int


class CopyMoments(msgspec.Struct, frozen=True, tag=True):
    """Send all moments."""


class RestoreMoments(msgspec.Struct, frozen=True, tag=True):
    """Replace the moments by those that follow."""


class ForgetMoments(msgspec.Struct, frozen=True, tag=True):
    """Reset the moments."""


StateCommand = (
    Directions
    | Compress
    | MeasureEnergies
    | StateDigests
    | ReadState
    | CopyState
    | RestoreState
    | ForgetState
)
"""Commands about the error feedback."""
MomentCommand = (
    CopyForUndo
    | StepParameters
    | EndShare
    | MomentDigests
    | MomentBlock
    | CopyMoments
    | RestoreMoments
    | ForgetMoments
)
"""Commands about the inner optimizer."""
Command = (
    BuildNetwork
    | BeginShare
    | Measure
    | TrainMicroBatches
    | Gather
    | HoldState
    | StateCommand
    | MomentCommand
)
