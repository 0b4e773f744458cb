"""How a run learns: `[model.LLM.lr_schedule]` and `[model.LLM.optimizer]`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticKnownError

from aftermath.config.tables import U8, U16, U32, Choice, Table, Variant, bits
from aftermath.rules import distro, sparseloco
from aftermath.rules.state import Divisor, InnerOptimizer, OptimizerKind, ScheduleKind

MOST_RATE = 1000.0
"""More than anybody learns with, and far from what an optimizer's numbers can hold."""


def _no_more_than_most(rate: float) -> float:
    """What is no number at all is left to the program's own rule."""
    if MOST_RATE < rate < math.inf:
        raise PydanticKnownError("less_than_equal", {"le": MOST_RATE})
    return rate


Rate = Annotated[float, AfterValidator(_no_more_than_most)]


def _schedule(kind: ScheduleKind, given: Table, **renamed: float) -> dict[str, Any]:
    """The program's form of a schedule: unused numbers are zero, and rates travel as their bits."""
    values: dict[str, Any] = given.model_dump() | renamed
    rates = ("base_lr", "warmup_init_lr", "final_lr", "cosine_decay_final_lr")
    steps = ("warmup_steps", "total_steps", "stable_steps", "cosine_decay_steps", "linear_decay_steps")
    return (
        {f"{name}_bits": bits(values.get(name, 0.0)) for name in rates}
        | {"kind": int(kind)}
        | {name: values.get(name, 0) for name in steps}
    )


class ConstantRate(Variant):
    """`base_lr` after the warm-up."""

    base_lr: Rate
    warmup_init_lr: Rate = 0.0
    warmup_steps: U32 = 0

    def to_chain(self) -> dict[str, Any]:
        return _schedule(ScheduleKind.CONSTANT, self)


class LinearRate(Variant):
    """A straight line from `base_lr` to `final_lr` at `total_steps`."""

    base_lr: Rate
    warmup_init_lr: Rate = 0.0
    final_lr: Rate = 0.0
    warmup_steps: U32 = 0
    total_steps: U32

    def to_chain(self) -> dict[str, Any]:
        return _schedule(ScheduleKind.LINEAR, self)


class CosineRate(Variant):
    """Half a cosine wave from `base_lr` to `final_lr` at `total_steps`."""

    base_lr: Rate
    warmup_init_lr: Rate = 0.0
    final_lr: Rate = 0.0
    warmup_steps: U32 = 0
    total_steps: U32

    def to_chain(self) -> dict[str, Any]:
        return _schedule(ScheduleKind.COSINE, self)


class WarmupStableDecayRate(Variant):
    """Stable, then a cosine to one final rate, then a line to another."""

    base_lr: Rate
    warmup_init_lr: Rate = 0.0
    cosine_decay_final_lr: Rate = 0.0
    linear_decay_final_lr: Rate = 0.0
    warmup_steps: U32 = 0
    stable_steps: U32
    cosine_decay_steps: U32
    linear_decay_steps: U32

    def to_chain(self) -> dict[str, Any]:
        return _schedule(ScheduleKind.WARMUP_STABLE_DECAY, self, final_lr=self.linear_decay_final_lr)


class LearningRate(Choice):
    """The learning-rate schedule."""

    Constant: ConstantRate | None = None
    Linear: LinearRate | None = None
    Cosine: CosineRate | None = None
    WarmupStableDecay: WarmupStableDecayRate | None = None


_REALS = (
    "clip_grad_norm",
    "weight_decay",
    "compression_decay",
    "beta1",
    "beta2",
    "eps",
    "outer_lr",
    "orthogonal_lr",
)


def _optimizer(kind: OptimizerKind, **given: Any) -> dict[str, Any]:
    """The program's form of an optimizer: unused numbers are zero, and reals travel as their bits."""
    return {
        **{f"{name}_bits": bits(given.get(name) or 0.0) for name in _REALS},
        "compression_topk": given.get("compression_topk", 0),
        "compression_topk_embeddings": given.get("compression_topk_embeddings") or 0,
        "compression_chunk": given.get("compression_chunk", 0),
        "inner_steps": given.get("inner_steps", 0),
        "kind": int(kind),
        "quantize_1bit": int(given.get("quantize_1bit", False)),
        "value_bits": given.get("value_bits", 0),
        "inner_optimizer": int(given.get("inner_optimizer", 0)),
        "divisor": int(given.get("divisor", 0)),
    }


class AdamWSettings(Variant):
    """AdamW on every member, for members that train the same data; nothing is compressed."""

    betas: Annotated[list[float], Field(min_length=2, max_length=2)]
    weight_decay: float
    eps: float
    clip_grad_norm: float | None = None

    def to_chain(self) -> dict[str, Any]:
        beta1, beta2 = self.betas
        return _optimizer(OptimizerKind.ADAMW, beta1=beta1, beta2=beta2, **self.model_dump(exclude={"betas"}))


class DistroSettings(Variant):
    """DisTrO: of what was not sent yet, the largest DCT coefficients per chunk are shared.

    `compression_topk_embeddings` is `compression_topk` for the token embedding and the output head, where it differs.
    """

    clip_grad_norm: float | None = None
    weight_decay: float | None = None
    compression_decay: float
    compression_topk: U16
    compression_topk_embeddings: Annotated[U16, Field(ge=1)] | None = None
    compression_chunk: U16
    quantize_1bit: bool = False

    def to_chain(self) -> dict[str, Any]:
        return _optimizer(OptimizerKind.DISTRO, **self.model_dump())


class SparseLoCoSettings(Variant):
    """SparseLoCo: steps of an inner optimizer on every member, whose largest changes per chunk are shared.

    `compression_topk_embeddings` is `compression_topk` for the token embedding and the output head, where it differs.
    With `orthogonal_lr` hidden matrices go that many learning rates along the polar factor of the mean (Muon's step).
    """

    inner_steps: U16 = sparseloco.INNER_STEPS
    inner_optimizer: Literal["adamw", "muon"] = sparseloco.INNER_OPTIMIZER
    outer_lr: float = sparseloco.OUTER_LR
    divisor: Literal["keepers", "all", "root"] = sparseloco.DIVISOR
    orthogonal_lr: float = sparseloco.ORTHOGONAL_LR
    value_bits: U8 = sparseloco.VALUE_BITS
    compression_decay: float = sparseloco.DECAY
    compression_chunk: U16 = sparseloco.CHUNK
    compression_topk: U16 = sparseloco.TOPK
    compression_topk_embeddings: Annotated[U16, Field(ge=1)] | None = None
    weight_decay: float = sparseloco.WEIGHT_DECAY
    clip_grad_norm: float = sparseloco.CLIP

    def to_chain(self) -> dict[str, Any]:
        named = {
            "inner_optimizer": InnerOptimizer[self.inner_optimizer.upper()],
            "divisor": Divisor[self.divisor.upper()],
        }
        return _optimizer(OptimizerKind.SPARSELOCO, **self.model_dump() | named)


class Optimizer(Choice):
    """The optimizer."""

    AdamW: AdamWSettings | None = None
    Distro: DistroSettings | None = None
    SparseLoCo: SparseLoCoSettings | None = None


DISTRO = DistroSettings(
    clip_grad_norm=1.0,
    compression_decay=distro.DECAY,
    compression_topk=distro.TOPK,
    compression_chunk=64,
    quantize_1bit=True,
)
SPARSELOCO = SparseLoCoSettings()
ADAMW = AdamWSettings(betas=[0.9, 0.95], weight_decay=0.0, eps=1e-8, clip_grad_norm=1.0)
"""What the optimizers are where no config file says it."""
