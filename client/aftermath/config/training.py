"""How a run learns: `[model.LLM.lr_schedule]` and `[model.LLM.optimizer]`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticKnownError

from aftermath.config.meaning import Means
from aftermath.config.tables import U8, U16, U32, Choice, Table, Variant, bits
from aftermath.rules import distro, sparseloco
from aftermath.rules.limits import MAX_CHUNK, MAX_INNER_STEPS, MAX_OUTER_RATE
from aftermath.rules.optimizers import OptimizerName
from aftermath.rules.state import Divisor, InnerOptimizerKind, OptimizerKind, ScheduleKind

MOST_RATE = 1000.0
"""Upper limit for learning rates."""


def _no_more_than_most(rate: float) -> float:
    """Return `rate` if it is at most MOST_RATE. `config.rules` rejects NaN and infinity."""
    if MOST_RATE < rate < math.inf:
        raise PydanticKnownError("less_than_equal", {"le": MOST_RATE})
    return rate


Rate = Annotated[float, AfterValidator(_no_more_than_most)]
HighestRate = Annotated[Rate, Means(above=0, most=MOST_RATE)]
FurtherRate = Annotated[Rate, Means(least=0, most=MOST_RATE)]
Steps = Annotated[U32, Means("steps")]
Numbers = Annotated[U16, Means("numbers", least=1)]
Chunk = Annotated[U16, Means("rows and columns", least=1, most=MAX_CHUNK)]
Decay = Annotated[float, Means(least=0, below=1)]
NotNegative = Annotated[float, Means(least=0)]
_BASE = "Learning rate after the warm-up; with SparseLoCo that of the inner optimizer."
_INIT = "Learning rate that the warm-up begins with."
_WARMUP = "Steps over which the learning rate rises to `base_lr`."
_CLIP = "Gradients are scaled down to this norm. 0 leaves them as they are."
_KEPT = "Factor by which error feedback (values not sent yet) is multiplied in every round."
_CHUNK = (
    "Rows and columns of the blocks that matrices are cut into. Larger blocks send fewer bytes."
)
_TOPK = "Number of values sent per block. At most the square of `compression_chunk`."
_TOPK_EMBEDDINGS = (
    "Number of values sent per block of the token embedding and the output head. "
    "By default `compression_topk`."
)
_WEIGHT_DECAY = "Decoupled weight decay: a step subtracts learning rate x weight_decay x weight."


def _schedule(kind: ScheduleKind, given: Table, **renamed: float) -> dict[str, Any]:
    """Return a schedule in flat form: unused numbers are zero, and rates are their bits."""
    values: dict[str, Any] = given.model_dump() | renamed
    rates = ("base_lr", "warmup_init_lr", "final_lr", "cosine_decay_final_lr")
    steps = (
        "warmup_steps",
        "total_steps",
        "stable_steps",
        "cosine_decay_steps",
        "linear_decay_steps",
    )
    return (
        {f"{name}_bits": bits(values.get(name, 0.0)) for name in rates}
        | {"kind": int(kind)}
        | {name: values.get(name, 0) for name in steps}
    )


class ConstantRate(Variant):
    """`base_lr` after the warm-up."""

    base_lr: HighestRate = Field(examples=[4e-4], description=_BASE)
    warmup_init_lr: FurtherRate = Field(default=0.0, description=_INIT)
    warmup_steps: Steps = Field(default=0, description=_WARMUP)

    def to_chain(self) -> dict[str, Any]:
        return _schedule(ScheduleKind.CONSTANT, self)


class _FallingRate(Variant):
    """From `base_lr` to `final_lr` at `total_steps`."""

    base_lr: HighestRate = Field(examples=[4e-4], description=_BASE)
    warmup_init_lr: FurtherRate = Field(default=0.0, description=_INIT)
    final_lr: FurtherRate = Field(
        default=0.0, description="Learning rate at `total_steps`, and from there on."
    )
    warmup_steps: Steps = Field(default=0, description=_WARMUP)
    total_steps: Steps = Field(
        examples=[1000],
        description="The step at which `final_lr` is reached. More than `warmup_steps`.",
    )


class LinearRate(_FallingRate):
    """A straight line from `base_lr` to `final_lr` at `total_steps`."""

    def to_chain(self) -> dict[str, Any]:
        return _schedule(ScheduleKind.LINEAR, self)


class CosineRate(_FallingRate):
    """Half a cosine wave from `base_lr` to `final_lr` at `total_steps`."""

    def to_chain(self) -> dict[str, Any]:
        return _schedule(ScheduleKind.COSINE, self)


class WarmupStableDecayRate(Variant):
    """Stable, then a cosine to one final rate, then a line to another."""

    base_lr: HighestRate = Field(examples=[4e-4], description=_BASE)
    warmup_init_lr: FurtherRate = Field(default=0.0, description=_INIT)
    cosine_decay_final_lr: FurtherRate = Field(
        default=0.0,
        examples=[4e-4],
        description="Learning rate where the cosine ends, and the line begins.",
    )
    linear_decay_final_lr: FurtherRate = Field(
        default=0.0, description="Learning rate at the end of the line, and after it. Prefer 0."
    )
    warmup_steps: Steps = Field(default=0, description=_WARMUP)
    stable_steps: Steps = Field(examples=[800], description="Steps at `base_lr` after the warm-up.")
    cosine_decay_steps: Steps = Field(
        examples=[0], description="Steps of the cosine decay after `stable_steps`. 0 skips it."
    )
    linear_decay_steps: Steps = Field(
        examples=[201],
        description="Steps of the linear decay. A fifth of the run is a good choice.",
    )

    def to_chain(self) -> dict[str, Any]:
        return _schedule(
            ScheduleKind.WARMUP_STABLE_DECAY, self, final_lr=self.linear_decay_final_lr
        )


class LearningRate(Choice):
    """The learning-rate schedule."""

    Constant: ConstantRate | None = Field(default=None, description="One rate.")
    Linear: LinearRate | None = Field(default=None, description="A line.")
    Cosine: CosineRate | None = Field(default=None, description="Half a cosine wave.")
    WarmupStableDecay: WarmupStableDecayRate | None = Field(
        default=None, description="One rate, then a fall: what the shipped configs do."
    )


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
    """Return an optimizer in flat form: unused numbers are zero, and reals are their bits."""
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

    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = Field(
        examples=[[0.9, 0.95]],
        description="AdamW's beta1 and beta2, each below 1.",
    )
    weight_decay: NotNegative = Field(examples=[0.1], description=_WEIGHT_DECAY)
    eps: NotNegative = Field(
        examples=[1e-8], description="AdamW's epsilon, which avoids a division by zero."
    )
    clip_grad_norm: NotNegative | None = Field(default=None, examples=[1.0], description=_CLIP)

    def to_chain(self) -> dict[str, Any]:
        beta1, beta2 = self.betas
        return _optimizer(
            OptimizerKind.ADAMW, beta1=beta1, beta2=beta2, **self.model_dump(exclude={"betas"})
        )


class DistroSettings(Variant):
    """DisTrO: after every step, share the top-k DCT coefficients per chunk, with error feedback."""

    clip_grad_norm: NotNegative | None = Field(default=None, examples=[1.0], description=_CLIP)
    weight_decay: NotNegative | None = Field(
        default=None, examples=[0.1], description=_WEIGHT_DECAY
    )
    compression_decay: Decay = Field(examples=[distro.DECAY], description=_KEPT)
    compression_topk: Numbers = Field(examples=[distro.TOPK], description=_TOPK)
    compression_topk_embeddings: Annotated[U16, Field(ge=1), Means("numbers")] | None = Field(
        default=None, examples=[64], description=_TOPK_EMBEDDINGS
    )
    compression_chunk: Chunk = Field(examples=[64], description=_CHUNK)
    quantize_1bit: bool = Field(
        default=False,
        examples=[True],
        description="Whether to send only the sign of each value, in one bit.",
    )

    def to_chain(self) -> dict[str, Any]:
        return _optimizer(OptimizerKind.DISTRO, **self.model_dump())


class SparseLoCoSettings(Variant):
    """SparseLoCo: take several inner steps, then share the top-k changes per chunk."""

    inner_steps: Annotated[U16, Means("steps", least=1, most=MAX_INNER_STEPS)] = Field(
        default=sparseloco.INNER_STEPS,
        description="Steps of a member in a round. Its share is cut into one part per step.",
    )
    inner_optimizer: sparseloco.InnerOptimizerName = Field(
        default=sparseloco.INNER_OPTIMIZER, description="Inner optimizer: AdamW or Muon."
    )
    outer_lr: Annotated[float, Means(above=0, most=MAX_OUTER_RATE)] = Field(
        default=sparseloco.OUTER_LR,
        description="Outer learning rate: factor of the members' mean, unless `orthogonal_lr` "
        "applies.",
    )
    divisor: sparseloco.DivisorName = Field(
        default=sparseloco.DIVISOR,
        description="Divisor of the sum of results: results with the value (keepers), all "
        "results, or their root. `root` is the square root of the product of both numbers.",
    )
    orthogonal_lr: Annotated[float, Means("learning rates", least=0, most=MAX_OUTER_RATE)] = Field(
        default=sparseloco.ORTHOGONAL_LR,
        examples=[15.0],
        description="Outer learning rate of hidden matrices along the polar factor of the mean "
        "(Muon). 0: they use outer_lr and the mean.",
    )
    value_bits: Annotated[U8, Means("bits", least=1, most=2)] = Field(
        default=sparseloco.VALUE_BITS, description="Bits per sent value."
    )
    compression_decay: Decay = Field(default=sparseloco.DECAY, description=_KEPT)
    compression_chunk: Chunk = Field(default=sparseloco.CHUNK, description=_CHUNK)
    compression_topk: Numbers = Field(default=sparseloco.TOPK, description=_TOPK)
    compression_topk_embeddings: Annotated[U16, Field(ge=1), Means("numbers")] | None = Field(
        default=None, examples=[64], description=_TOPK_EMBEDDINGS
    )
    weight_decay: NotNegative = Field(
        default=sparseloco.WEIGHT_DECAY, examples=[0.1], description=_WEIGHT_DECAY
    )
    clip_grad_norm: NotNegative = Field(default=sparseloco.CLIP, description=_CLIP)

    def to_chain(self) -> dict[str, Any]:
        named = {
            "inner_optimizer": InnerOptimizerKind[self.inner_optimizer.upper()],
            "divisor": Divisor[self.divisor.upper()],
        }
        return _optimizer(OptimizerKind.SPARSELOCO, **self.model_dump() | named)


class OptimizerChoice(Choice):
    """The optimizer."""

    AdamW: AdamWSettings | None = Field(
        default=None, description="Not supported in a run: AdamW has no results to exchange."
    )
    Distro: DistroSettings | None = Field(
        default=None, description="One step per round, few bytes: for short rounds."
    )
    SparseLoCo: SparseLoCoSettings | None = Field(
        default=None, description="Several steps per round, for long rounds."
    )


DISTRO = DistroSettings(
    clip_grad_norm=1.0,
    compression_decay=distro.DECAY,
    compression_topk=distro.TOPK,
    compression_chunk=64,
    quantize_1bit=True,
)
SPARSELOCO = SparseLoCoSettings()
ADAMW = AdamWSettings(betas=[0.9, 0.95], weight_decay=0.0, eps=1e-8, clip_grad_norm=1.0)
UNSAID: Mapping[OptimizerName, Variant] = {
    "distro": DISTRO,
    "sparseloco": SPARSELOCO,
    "adamw": ADAMW,
}
"""Default settings of each optimizer, for commands without a config file."""
