"""How a run learns: `[model.LLM.lr_schedule]` and `[model.LLM.optimizer]`."""

from __future__ import annotations

import inspect
import math
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, create_model
from pydantic_core import PydanticKnownError

from aftermath.config.tables import U16, U32, C, Choice, KeyLimits, Table, Variant, bits, extended
from aftermath.rules.optimizer import Optimizer, OptimizerSetting
from aftermath.rules.optimizers import configurable
from aftermath.rules.state import ScheduleKind

MOST_RATE = 1000.0
"""Upper limit for learning rates."""


def _no_more_than_most(rate: float) -> float:
    """Return `rate` if it is at most MOST_RATE. `config.rules` rejects NaN and infinity."""
    if MOST_RATE < rate < math.inf:
        raise PydanticKnownError("less_than_equal", {"le": MOST_RATE})
    return rate


Rate = Annotated[float, AfterValidator(_no_more_than_most)]
HighestRate = Annotated[Rate, KeyLimits(above=0, most=MOST_RATE)]
FurtherRate = Annotated[Rate, KeyLimits(least=0, most=MOST_RATE)]
Steps = Annotated[U32, KeyLimits("steps")]
_BASE = "Learning rate after the warm-up; with SparseLoCo that of the inner optimizer."
_INIT = "Learning rate that the warm-up begins with."
_WARMUP = "Steps over which the learning rate rises to `base_lr`."


def _schedule(kind: ScheduleKind, table: Table, **renamed: float) -> dict[str, Any]:
    """Return a schedule in flat form: unused numbers are zero, and rates are their bits."""
    values: dict[str, Any] = table.model_dump() | renamed
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
        description="Learning rate at the end of the cosine, where the line begins.",
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
        default=None, description="One rate, then a decay. The shipped configs use it."
    )


class OptimizerTable(Variant):
    """The table of an optimizer. Its keys are the optimizer's settings."""

    OPTIMIZER: ClassVar[type[Optimizer]]

    @classmethod
    def summary(cls) -> str:
        return cls.OPTIMIZER.SUMMARY

    @property
    def settings(self) -> Optimizer:
        """The optimizer. Raises SchemaError for a table that breaks a rule."""
        return self.OPTIMIZER.of(self.model_dump())

    def to_chain(self) -> dict[str, Any]:
        return {"kind": self.OPTIMIZER.kind(), **self.model_dump()}


def optimizer_table(optimizer: type[Optimizer]) -> type[OptimizerTable]:
    """Return the class of an optimizer's table."""
    fields = {setting.key.name: _field(optimizer, setting) for setting in optimizer.settings()}
    table = create_model(
        f"{optimizer.TABLE}Settings",
        __base__=OptimizerTable,
        __module__=__name__,
        __doc__=inspect.getdoc(optimizer),
        **fields,
    )
    table.OPTIMIZER = optimizer
    return table


def _field(optimizer: type[Optimizer], setting: OptimizerSetting) -> Any:
    """Return the type of a key and its description."""
    key = setting.key
    default = optimizer.IN_FILE.get(setting.name, None if key.follows else setting.default)
    example = setting.default if key.example is None else key.example
    kind: Any = U16 if setting.kind is int else setting.kind
    if isinstance(setting.default, tuple):
        size = len(setting.default)
        kind = Annotated[list[float], Field(min_length=size, max_length=size)]
        example = list(example)
    elif setting.kind in (int, float):
        kind = Annotated[
            kind,
            KeyLimits(key.unit, least=key.least, most=key.most, above=key.above, below=key.below),
        ]
    return (
        kind | None if default is None else kind,
        Field(
            default=default,
            examples=None if example == default else [example],
            description=key.text,
        ),
    )


def _with_optimizers(choice: type[C]) -> type[C]:
    return extended(choice, {name: optimizer_table(one) for name, one in configurable().items()})


@_with_optimizers
class OptimizerChoice(Choice):
    """The optimizer."""

    @property
    def settings(self) -> Optimizer:
        """The chosen optimizer. Raises SchemaError for a table that breaks a rule."""
        table = self.chosen
        assert isinstance(table, OptimizerTable)
        return table.settings
