"""Train a member's share again from the same inputs.

`replay` runs the members' own training code on a new replica, so the auditor's own replica does not
change. `audit.comparison` compares the replay with the member's result.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from aftermath.model.config import ModelConfig
from aftermath.model.segments import view
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.layout import LevelLayout, level_layout
from aftermath.optim.moe_bias import Balances
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.schema import Schema
from aftermath.optim.transform import cells
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.pass_size import AUTO, OutOfMemory, PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.announcements import PassSettings

_ROUNDING = 2.0**-23  # fp32


@dataclass(frozen=True)
class AuditedShare:
    """The inputs from which a member trained its share of a round."""

    schema: Schema
    config: ModelConfig
    tier: int
    shared: Mapping[str, Tensor]
    """The tensors that replicas share (`Replica.shared`), at the start of the round."""
    before: Mapping[str, Tensor]
    """The member's private state before the share (`Engine.state`). Empty if it had none.

    With SparseLoCo, residual blocks that the auditor did not fetch may be zero, because training
    does not read the residual. Ignore those blocks in the replayed residual.
    """
    sequences: Tensor
    """int64 [n, seq_len], or [n, 2, seq_len] with labels."""
    lr: float
    ahead_lr: float
    """The learning rate of the previous step."""
    peak_lr: float = math.inf
    """A learning rate that the schedule never exceeds. It bounds what the residual can contain."""
    travelling: bool = False
    """Whether the member's previous result is not in `shared` yet."""
    dummy_seed: int | None = None
    """The seed of the noise that a member sends instead of training, in tests of a network."""


@dataclass(frozen=True)
class Replay:
    """What the member should have produced. Tensors are on the CPU."""

    share: AuditedShare
    payloads: Mapping[int, bytes]
    """Payload per held level."""
    state: Mapping[str, Tensor]
    """The private state after the share: residual, chosen entries and moments."""
    block_norms: Mapping[int, list[Tensor]]
    """Norm of each block of the pseudo-gradient: per held level, a tensor [blocks] per group."""
    passes: PassSettings
    """Precision and device of the replay's passes."""


@dataclass(frozen=True)
class NoResult:
    """A share without a result, because a loss or a gradient was not finite.

    An honest member skips such a round and commits to nothing. This outcome convicts nobody, even
    if the member committed to a result: near overflow, rounding decides what is finite.
    """

    reason: str


def replay(
    share: AuditedShare,
    *,
    device: torch.device,
    micro_batch: int = AUTO,
    arithmetic: Arithmetic = PLAIN,
    exact: bool = False,
    moved: int = 0,
    cancelled: threading.Event | None = None,
) -> Replay | NoResult:
    """Train a share again on `device`, in passes of `micro_batch` sequences.

    `arithmetic` must be the member's. Device and micro-batch size may differ unless
    `replay_devices.needs_same_passes`. `exact`: raise OutOfMemory if passes of that size do not
    fit. `moved`: first move all weights by this many roundings. Raises BadState if
    `share.before` does not fit, Cancelled, OutOfMemory, and SchemaError or SegmentError for tensors
    of another model.
    """
    cancelled = cancelled or threading.Event()
    block_norms: dict[int, list[Tensor]] = {}
    replica = Replica(
        share.schema,
        share.config,
        share.tier,
        {name: tensor.to(device, copy=True) for name, tensor in share.shared.items()},
        device=device,
        pass_size=PassSize(micro_batch, "auto"),
        stopwatch=lambda: 0.0,
        arithmetic=arithmetic,
        result=partial(_MeasuringFeedback, block_norms),
    )
    if moved:
        _move(replica.params.values(), moved * _ROUNDING)
    if share.before:
        replica.optimizer.restore(share.before)
    # The member may name any micro-batch size. On a CPU the system would kill this process.
    if exact and not replica.has_memory_for(share.sequences, micro_batch, cancelled):
        raise OutOfMemory(
            f"this machine has too little memory for passes of {micro_batch} sequences",
            "Nothing to do: other members judge this result",
        )
    try:
        trained = replica.train(
            share.sequences,
            share.lr,
            share.ahead_lr,
            cancelled,
            travelling=share.travelling,
            dummy_seed=share.dummy_seed,
        )
    except NonFiniteGradient as error:
        return NoResult(error.message)
    return Replay(
        share=share,
        payloads=trained.payloads,
        state=replica.optimizer.state(),
        block_norms=block_norms,
        passes=replica.pass_settings,
    )


@torch.no_grad()
def _move(params: Iterable[Tensor], part: float) -> None:
    """Multiply weights in place by 1 + part and 1 - part, alternately."""
    for tensor in params:
        numbers = tensor.view(-1)
        numbers[::2] *= 1 + part
        numbers[1::2] *= 1 - part


class _MeasuringFeedback(ErrorFeedback):
    """Error feedback that records the norms of the last pseudo-gradient's blocks."""

    def __init__(
        self,
        block_norms: dict[int, list[Tensor]],
        results: ResultFormat,
        tier: int,
        params: Mapping[str, Tensor],
        decay: float,
        balances: Balances,
    ) -> None:
        super().__init__(results, tier, params, decay, balances)
        self._block_norms = block_norms

    def compress(self, gradient: PseudoGradient) -> dict[int, bytes]:
        """Record the norms, and return the result per held level."""
        payloads = super().compress(gradient)
        for level in payloads:
            self._block_norms[level] = _block_norms_of(gradient, level_layout(self._format, level))
        return payloads


@torch.no_grad()
def _block_norms_of(gradient: PseudoGradient, layout: LevelLayout) -> list[Tensor]:
    """Return the norm of each block of a pseudo-gradient: fp32 [blocks] per group, on the CPU."""
    norms = [torch.zeros(group.blocks) for group in layout.groups]
    for part in layout.parts:
        tensor = view(gradient.tensors, part.segment)
        group = layout.groups[part.group]
        blocks = tensor.new_zeros(part.blocks.count, group.height, group.width)
        for numbers, place in cells(tensor, blocks, part.blocks):
            place.copy_(numbers)
        part.of(norms[part.group]).copy_(blocks.flatten(1).norm(dim=1).mul_(abs(gradient.factor)))
    return norms
