"""Settings of DisTrO, on which all members agree.

DisTrO takes one gradient per share, sends the strongest DCT coefficients of the residual, and steps
by the sign of the mean. `optim.engine` builds its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from aftermath.model.schema import StateSchema, decimal, portable
from aftermath.optim.blocks import cut
from aftermath.optim.format import ResultFormat, Transform, Values
from aftermath.optim.ranges import at_least_zero, within_u16
from aftermath.rules.model import Optimizer

KIND = "distro"
_SET = "Set it in [model.LLM.optimizer.Distro] of the run's config file"


@dataclass(frozen=True)
class Distro:
    """The settings of DisTrO. Raises SchemaError for invalid values."""

    topk: int
    topk_embeddings: int
    """`topk` of the token embedding and the output head."""
    chunk: int
    quantize_1bit: bool
    decay: float
    weight_decay: float
    clip: float | None
    """Largest gradient norm. None and 0 disable clipping."""

    inner_steps: ClassVar[int] = 0  # a share gives one gradient
    inner_optimizer: ClassVar[None] = None
    moments: ClassVar[int] = 0
    late: ClassVar[str] = ""

    @classmethod
    def of(cls, optimizer: Optimizer) -> Distro:
        """Return the settings from a Model account's numbers. Raises SchemaError."""
        return cls(
            topk=optimizer.compression_topk,
            topk_embeddings=optimizer.compression_topk_embeddings or optimizer.compression_topk,
            chunk=optimizer.compression_chunk,
            quantize_1bit=bool(optimizer.quantize_1bit),
            decay=optimizer.compression_decay,
            weight_decay=optimizer.weight_decay,
            clip=optimizer.clip_grad_norm or None,
        )

    def __post_init__(self) -> None:
        counts = {"topk": self.topk, "topk_embeddings": self.topk_embeddings, "chunk": self.chunk}
        for label, number in counts.items():
            within_u16(f"compression_{label}", number, _SET)
        decay = at_least_zero("compression_decay", self.decay, _SET, most=1)
        numbers = {
            "decay": decay,
            "weight_decay": at_least_zero("weight_decay", self.weight_decay, _SET),
        }
        clip = at_least_zero("clip_grad_norm", self.clip or 0.0, _SET) or None
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
        return ResultFormat(
            blocks, state.levels, Transform.DCT, Values.SIGN if self.quantize_1bit else Values.FLOAT
        )

    def document(self) -> dict[str, Any]:
        """Return all settings as JSON values, without floats."""
        return {"kind": KIND, **portable(vars(self))}


class DistroInputs(msgspec.Struct, frozen=True, tag_field="kind", tag=KIND):
    """The settings in a schema document."""

    topk: int
    topk_embeddings: int
    chunk: int
    quantize_1bit: bool
    decay: str
    weight_decay: str
    clip: str | None

    def settings(self) -> Distro:
        """Return the settings. Raises SchemaError."""
        return Distro(
            topk=self.topk,
            topk_embeddings=self.topk_embeddings,
            chunk=self.chunk,
            quantize_1bit=self.quantize_1bit,
            decay=decimal(self.decay, "decay"),
            weight_decay=decimal(self.weight_decay, "weight_decay"),
            clip=None if self.clip is None else decimal(self.clip, "clip"),
        )
