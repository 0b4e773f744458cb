"""Settings of SparseLoCo, on which all members agree.

SparseLoCo makes inner steps, sends the strongest changes in one or two bits each, and applies their
exact mean. `optim.engine` builds its parts. Source: Sarfi et al., "Communication Efficient LLM
Pre-training with SparseLoCo" (arXiv 2508.15706).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast, get_args

import msgspec

from aftermath.model.schema import SchemaError, StateSchema, decimal, portable
from aftermath.optim.blocks import cut
from aftermath.optim.format import ResultFormat, Transform, Values
from aftermath.optim.ranges import at_least_zero, within_u16
from aftermath.rules import sparseloco
from aftermath.rules.limits import MAX_INNER_STEPS, MAX_OUTER_RATE
from aftermath.rules.model import Optimizer
from aftermath.rules.sparseloco import DivisorName, InnerOptimizerName

KIND = "sparseloco"
_SET = "Choose another in the optimizer's settings"

REACH: dict[InnerOptimizerName, float] = {"adamw": 2.0, "muon": 0.5}
"""Cap of one member's value, in learning rates per inner step.

It limits how far one member can move the model, and reduces the overshoot if several residuals
contain the same change (docs/experiments.md).
"""


@dataclass(frozen=True)
class SparseLoCo:
    """The settings of SparseLoCo. Raises SchemaError for invalid values."""

    inner_steps: int = sparseloco.INNER_STEPS
    """Parts of a share, each with one step of the inner optimizer."""
    inner_optimizer: InnerOptimizerName = sparseloco.INNER_OPTIMIZER
    topk: int = sparseloco.TOPK
    topk_embeddings: int = sparseloco.TOPK
    """`topk` of the token embedding and the output head."""
    chunk: int = sparseloco.CHUNK
    bits: int = sparseloco.VALUE_BITS
    """Bits per value: 1 or 2."""
    decay: float = sparseloco.DECAY
    """Factor of the residual per round."""
    outer_lr: float = sparseloco.OUTER_LR
    """Factor of the mean at the apply."""
    divisor: DivisorName = sparseloco.DIVISOR
    orthogonal_lr: float = sparseloco.ORTHOGONAL_LR
    """Step along the polar factor of the mean in hidden matrices, in learning rates. 0 applies the
    mean.
    """
    weight_decay: float = sparseloco.WEIGHT_DECAY
    """Weight decay of the inner optimizer."""
    clip: float | None = sparseloco.CLIP
    """Largest gradient norm. None and 0 disable clipping."""

    late: ClassVar[str] = (
        "SparseLoCo learns less with it, since members train at weights that lack what others sent; it pays only where "
        "results travel for about as long as a round trains"
    )

    @property
    def moments(self) -> int:
        """Return the moments per number of a hidden matrix. Other parameters always have two."""
        return {"adamw": 2, "muon": 1}[self.inner_optimizer]

    @classmethod
    def of(cls, optimizer: Optimizer) -> SparseLoCo:
        """Return the settings from a Model account's numbers. Raises SchemaError."""
        return cls(
            inner_steps=optimizer.inner_steps,
            inner_optimizer=cast(InnerOptimizerName, optimizer.inner_optimizer.name.lower()),
            topk=optimizer.compression_topk,
            topk_embeddings=optimizer.compression_topk_embeddings or optimizer.compression_topk,
            chunk=optimizer.compression_chunk,
            bits=optimizer.value_bits,
            decay=optimizer.compression_decay,
            outer_lr=optimizer.outer_lr,
            divisor=cast(DivisorName, optimizer.divisor.name.lower()),
            orthogonal_lr=optimizer.orthogonal_lr,
            weight_decay=optimizer.weight_decay,
            clip=optimizer.clip_grad_norm or None,
        )

    def __post_init__(self) -> None:
        if not 1 <= self.inner_steps <= MAX_INNER_STEPS:
            raise SchemaError(
                f"inner_steps must be from 1 to {MAX_INNER_STEPS}, not {self.inner_steps}", _SET
            )
        if self.inner_optimizer not in (words := get_args(InnerOptimizerName)):
            raise SchemaError(
                f"inner_optimizer must be {' or '.join(words)}, not {self.inner_optimizer!r}", _SET
            )
        if self.bits not in (1, 2):
            raise SchemaError(f"bits must be 1 or 2, not {self.bits}", _SET)
        if self.divisor not in (words := get_args(DivisorName)):
            raise SchemaError(f"divisor must be {', '.join(words)}, not {self.divisor!r}", _SET)
        for label in ("topk", "topk_embeddings", "chunk"):
            within_u16(label, getattr(self, label), _SET)
        outer = at_least_zero("outer_lr", self.outer_lr, _SET, most=MAX_OUTER_RATE)
        if not outer:
            raise SchemaError("outer_lr must be above 0", _SET)
        numbers = {"decay": at_least_zero("decay", self.decay, _SET, most=1), "outer_lr": outer}
        numbers["orthogonal_lr"] = at_least_zero(
            "orthogonal_lr", self.orthogonal_lr, _SET, most=MAX_OUTER_RATE
        )
        numbers["weight_decay"] = at_least_zero("weight_decay", self.weight_decay, _SET)
        clip = at_least_zero("clip", self.clip or 0.0, _SET) or None
        for name, value in (numbers | {"clip": clip}).items():
            object.__setattr__(self, name, value)

    def results(self, state: StateSchema) -> ResultFormat:
        """Return the format of members' results. Raises SchemaError if the blocks would be too
        large.
        """
        blocks = cut(
            state.segments,
            chunk=self.chunk,
            topk=self.topk,
            topk_embeddings=self.topk_embeddings,
            balances=state.config.balances,
        )
        values = Values.ONE_BIT if self.bits == 1 else Values.TWO_BIT
        return ResultFormat(blocks, state.levels, Transform.NONE, values)

    def document(self) -> dict[str, Any]:
        """Return all settings as JSON values, without floats."""
        return {"kind": KIND, **portable(vars(self))}


class SparseLoCoInputs(msgspec.Struct, frozen=True, tag_field="kind", tag=KIND):
    """The settings in a schema document."""

    inner_steps: int
    inner_optimizer: InnerOptimizerName
    topk: int
    topk_embeddings: int
    chunk: int
    bits: int
    decay: str
    outer_lr: str
    divisor: DivisorName
    orthogonal_lr: str
    weight_decay: str
    clip: str | None

    def settings(self) -> SparseLoCo:
        """Return the settings. Raises SchemaError."""
        return SparseLoCo(
            inner_steps=self.inner_steps,
            inner_optimizer=self.inner_optimizer,
            topk=self.topk,
            topk_embeddings=self.topk_embeddings,
            chunk=self.chunk,
            bits=self.bits,
            decay=decimal(self.decay, "decay"),
            outer_lr=decimal(self.outer_lr, "outer_lr"),
            divisor=self.divisor,
            orthogonal_lr=decimal(self.orthogonal_lr, "orthogonal_lr"),
            weight_decay=decimal(self.weight_decay, "weight_decay"),
            clip=None if self.clip is None else decimal(self.clip, "clip"),
        )
