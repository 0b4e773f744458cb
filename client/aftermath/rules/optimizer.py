"""The base class of optimizers. One class per optimizer declares its settings.

The settings are the fields of a frozen dataclass. Their `SettingKey` and `LabOption` generate the
config tables, the spec's rules, the options of `train-local`, docs pages and schema documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from aftermath.base.errors import SchemaError, short_repr
from aftermath.rules.limits import MAX_CHUNK

REQUIRED = ...
"""In `Optimizer.IN_FILE`: a config file must have the key."""
U16_MAX = 2**16 - 1


@dataclass(frozen=True)
class SettingKey:
    """The key of a setting in a config file: its name, description, unit and limits."""

    name: str
    text: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    rule: str = "OptimizerNumberInvalid"
    """The name of the rule that refuses other numbers (`Optimizer.SENTENCES`)."""
    example: Any = None
    follows: str = ""
    """The setting whose value is used if a file lacks the key."""

    def allows(self, value: Any, *, closed: bool = False) -> bool:
        """Return whether a value is within the limits. Words and flags always are.

        `closed`: the upper limit itself is allowed.
        """
        if isinstance(value, bool | str):
            return True
        # An integer may be too large for a float.
        negative = value < 0 if isinstance(value, int) else math.copysign(1, value) < 0
        if negative or not (isinstance(value, int) or math.isfinite(value)):
            return False
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below or (closed and value == self.below))
        )

    @property
    def limits(self) -> str:
        """Return the limits as text."""
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        sides = (
            ("above", self.above),
            ("at least", self.least),
            ("below", self.below),
            ("at most", self.most),
        )
        known = [f"{word} {limit:g}" for word, limit in sides if limit is not None]
        return "a finite number " + " and ".join(known)


@dataclass(frozen=True)
class LabOption:
    """The option of `train-local` that sets a setting."""

    name: str
    """The flag without its dashes, with underscores."""
    text: str
    choices: tuple[str, ...] = ()
    """The allowed numbers, if there are few."""


@dataclass(frozen=True)
class OptimizerSetting:
    """A field of an optimizer's class."""

    name: str
    kind: Any
    """The type without None."""
    optional: bool
    """Whether None is allowed. In a file, 0 means None."""
    default: Any
    key: SettingKey
    option: LabOption | None

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the allowed values of a Literal, else nothing."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def read(self, value: Any) -> Any:
        """Convert a value to the field's type. A missing number becomes None if allowed, else 0."""
        if self.optional and not value:
            return None
        if isinstance(value, list | tuple):
            return tuple(map(float, value))
        return float(value or 0) if self.kind is float else value


@dataclass(frozen=True)
class Optimizer:
    """The settings of an optimizer, on which all members of a run agree.

    Raises SchemaError for invalid settings. Every setting needs a default.
    """

    TABLE: ClassVar[str]
    """The name of its table below [model.LLM.optimizer] and of its entry point."""
    SHOWN: ClassVar[str] = ""
    """Name for display, if it differs from the table's."""
    SUMMARY: ClassVar[str] = "From an installed package."
    """What it is for, in one sentence."""
    ENGINE: ClassVar[str] = ""
    """`module:Class` of its `optim.parts.OptimizerParts`. If members do not exchange results,
    `module:function` of a function that builds a torch optimizer. Configs are read without PyTorch,
    so this is a name and not the object.
    """
    EXCHANGED: ClassVar[bool] = True
    """Whether members exchange results with it. If not, it trains on one machine only."""
    IN_CONFIG: ClassVar[bool] = True
    """Whether a config file may name it."""
    IN_FILE: ClassVar[Mapping[str, Any]] = {}
    """Config-file defaults that differ from the class's: None, REQUIRED or a value."""
    LATER: ClassVar[frozenset[str]] = frozenset()
    """Settings that a schema document omits at their default, so older documents stay equal."""
    SENTENCES: ClassVar[Mapping[str, str]] = {}
    """Sentence of each rule that its keys name and that the module's SENTENCES lack."""
    OVERLAP: ClassVar[int] = 1
    """Default delay, in rounds, with which `train-local` applies results."""
    LATE: ClassVar[str] = ""
    """A warning about overlapped rounds; empty if they are harmless."""
    RECIPE: ClassVar[str] = ""
    """The shipped config from which `init --optimizer` takes its numbers."""

    def __post_init__(self) -> None:
        where = f"Set it in [model.LLM.optimizer.{self.TABLE}] of the run's config file"
        for setting in self.settings():
            value = setting.read(getattr(self, setting.name))
            name = setting.key.name
            if setting.choices and value not in setting.choices:
                allowed = " or ".join(setting.choices)
                raise SchemaError(f"{name} must be {allowed}, not {short_repr(value)}", where)
            # A file's limits are stricter: a decay of exactly 1 is useful only in tests.
            if value is not None and not all(
                setting.key.allows(one, closed=True) for one in _each(value)
            ):
                raise SchemaError(
                    f"{name} must be {setting.key.limits}, not {short_repr(value)}", where
                )
            object.__setattr__(self, setting.name, value)

    @property
    def usual_rate(self) -> float:
        """Return the default of `train-local` for the highest learning rate."""
        return 1e-3

    @property
    def weight_decay(self) -> float:
        """Return the decoupled weight decay."""
        return 0.0

    @property
    def clip(self) -> float | None:
        """Return the largest gradient norm, or None without clipping."""
        return None

    @property
    def decay(self) -> float:
        """Return the factor of the residual per round."""
        return 1.0

    @property
    def inner_steps(self) -> int:
        """Return the number of inner steps per share; 0 if a share gives one gradient."""
        return 0

    def sequences_per_step(self, sequences: int) -> int:
        """Return how many sequences the largest step of a share of `sequences` has."""
        return -(-sequences // max(1, min(self.inner_steps, sequences)))

    @property
    def inner_optimizer(self) -> InnerOptimizerName | None:
        """Return the optimizer of the inner steps, or None without inner steps."""
        return None

    @property
    def may_step_in_bf16(self) -> bool:
        """Return whether some devices compute the products of inner steps in bf16."""
        return self.inner_optimizer == "muon"

    @property
    def moments(self) -> int:
        """Return how many moments a member keeps per number of a hidden matrix."""
        return 0

    @property
    def outer_momentum(self) -> float:
        """Return the outer momentum factor, or 0 if there is none."""
        return 0.0

    @classmethod
    def kind(cls) -> str:
        """Return its name in options, schema documents and outputs."""
        return cls.TABLE.lower()

    @classmethod
    def shown(cls) -> str:
        """Return its name for display."""
        return cls.SHOWN or cls.TABLE

    @classmethod
    @cache
    def settings(cls) -> tuple[OptimizerSetting, ...]:
        """Return the settings in the order of the fields."""
        hints = type_hints(cls, include_extras=True)
        return tuple(_setting(one.name, hints[one.name], one.default) for one in fields(cls))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the optimizer from the values of its keys. Raises SchemaError."""
        names = {setting.name: setting.key.name for setting in cls.settings()}
        chosen = {}
        for setting in cls.settings():
            value = values[setting.key.name]
            if value is None and setting.key.follows:
                value = values[names[setting.key.follows]]
            chosen[setting.name] = setting.read(value)
        return cls(**chosen)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the values of its keys that `train-local` begins with."""
        return {
            setting.key.name: None if setting.key.follows else setting.default
            for setting in cls.settings()
        }

    @classmethod
    def broken(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Yield rule, key and value for each value that is not allowed."""
        for key in (setting.key for setting in cls.settings()):
            value = values[key.name]
            if value is not None:
                yield from (
                    (key.rule, key.name, one) for one in _each(value) if not key.allows(one)
                )

    def document(self) -> dict[str, Any]:
        """Return its kind and settings, as a schema document has them."""
        fields = {
            one.name: getattr(self, one.name)
            for one in self.settings()
            if one.name not in self.LATER or getattr(self, one.name) != one.default
        }
        return {"kind": self.kind(), **fields}

    def values(self) -> dict[str, Any]:
        """Return its kind and the values of its keys, as outputs show them."""
        values = {one.key.name: getattr(self, one.name) for one in self.settings()}
        return {"kind": self.kind()} | {
            name: 0.0 if value is None else value for name, value in values.items()
        }


@dataclass(frozen=True)
class Compressed(Optimizer):
    """An optimizer whose results are the strongest numbers of each block."""

    @property
    def chunk(self) -> int:
        """Return the largest edge of a block."""
        return 64

    @property
    def topk(self) -> int:
        """Return the numbers that a result keeps per block."""
        return 32

    @property
    def topk_embeddings(self) -> int:
        """Return `topk` for the token embedding and the output head."""
        return self.topk

    @classmethod
    def broken(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """Yield broken rules like the base class, and settings that send more values than a block
        has.
        """
        yield from super().broken(values)
        for name in (TOPK.name, TOPK_EMBEDDINGS.name):
            if (values[name] or 0) > values[CHUNK.name] ** 2:
                yield TOPK.rule, name, values[name]


@dataclass(frozen=True)
class NoOptimizer(Optimizer):
    """The optimizer of a run that is not configured."""

    TABLE = "None"
    EXCHANGED = False


InnerOptimizerName = Literal["adamw", "muon"]

CLIP = SettingKey(
    "clip_grad_norm",
    "Gradients are scaled down to this norm. 0 leaves them as they are.",
    least=0,
)
WEIGHT_DECAY = SettingKey(
    "weight_decay",
    "Decoupled weight decay: a step subtracts learning rate x weight_decay x weight.",
    least=0,
    example=0.1,
)
DECAY = SettingKey(
    "compression_decay",
    "Factor by which error feedback (values not sent yet) is multiplied in every round.",
    least=0,
    below=1,
)
CHUNK = SettingKey(
    "compression_chunk",
    "Rows and columns of the blocks that matrices are cut into. Larger blocks send fewer bytes.",
    "rows and columns",
    least=1,
    most=MAX_CHUNK,
    rule="ChunkOutOfRange",
)
TOPK = SettingKey(
    "compression_topk",
    "Number of values sent per block. At most the square of `compression_chunk`.",
    "numbers",
    least=1,
    most=U16_MAX,
    rule="TopkOutOfRange",
)
TOPK_EMBEDDINGS = SettingKey(
    "compression_topk_embeddings",
    "Number of values sent per block of the token embedding and the output head. "
    "By default `compression_topk`.",
    "numbers",
    least=1,
    most=U16_MAX,
    rule="TopkOutOfRange",
    example=64,
    follows="topk",
)
SENTENCES: Mapping[str, str] = {
    "OptimizerNumberInvalid": (
        "The optimizer's numbers must be finite and at least 0; decays and betas must be below 1."
    ),
    "ChunkOutOfRange": "Results need compression_chunk between 1 and 4096.",
    "TopkOutOfRange": (
        "Results need compression_topk between 1 and compression_chunk "
        "squared, and compression_topk_embeddings at most that."
    ),
}
"""The sentence of each rule of the common keys."""

Clip = Annotated[float | None, CLIP]
WeightDecay = Annotated[float, WEIGHT_DECAY]
Decay = Annotated[
    float,
    DECAY,
    LabOption("feedback_decay", "Factor of the residual (what was not sent) per round."),
]
Chunk = Annotated[int, CHUNK]
TopK = Annotated[int, TOPK, LabOption("topk", "Coefficients that a result keeps per block.")]
TopKEmbeddings = Annotated[
    int,
    TOPK_EMBEDDINGS,
    LabOption("topk_embeddings", "--topk for the token embedding and the output head."),
]


def _each(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _setting(name: str, hint: Any, default: Any) -> OptimizerSetting:
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return OptimizerSetting(
        name,
        next(one for one in choices if one is not NoneType),
        NoneType in choices,
        default,
        next(mark for mark in marks if isinstance(mark, SettingKey)),
        next((mark for mark in marks if isinstance(mark, LabOption)), None),
    )
