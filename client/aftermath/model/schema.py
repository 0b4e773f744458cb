"""The state schema: the tensors of a run's model and the levels they are cut into.

It does not depend on the optimizer. Level l is what tier l adds to tier l + 1: hidden units
[width(l+1), width(l)) of every elastic tensor, and the layers that tier l + 1 skips.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import msgspec

from aftermath.base.errors import SchemaError as SchemaError
from aftermath.model.architectures import config_of, config_type
from aftermath.model.config import MAX_TIERS, ModelConfig


def is_table(name: str) -> bool:
    """Return whether a tensor has a row for every token: an embedding, or the output head."""
    return "embed" in name or name.endswith(("lm_head.weight", "wte.weight", "wpe.weight"))


def is_hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Return whether a tensor is a hidden matrix, which Muon can update.

    A stack of matrices (experts) counts too. Tables of tokens and depthwise filters do not.
    """
    return not is_table(name) and (len(shape) == 2 or (len(shape) > 2 and min(shape[-2:]) > 1))


@dataclass(frozen=True)
class Segment:
    """A level's part of a tensor: [start, stop) along `dim`, or all of it if `dim` is None."""

    dtype: ClassVar[str] = "float32"
    number_bytes: ClassVar[int] = 4

    name: str
    level: int
    dim: Literal[0, 1] | None
    start: int
    stop: int
    shape: tuple[int, ...]  # the part's shape

    @property
    def numel(self) -> int:
        """Return the number of parameters."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Return the segment's bytes."""
        return self.number_bytes * self.numel


class MomentumSegment(Segment):
    """A level's segment of a parameter's outer momentum (`optim.outer_momentum`)."""

    dtype: ClassVar[str] = "int64"
    number_bytes: ClassVar[int] = 8

    @classmethod
    def of(cls, segment: Segment) -> MomentumSegment:
        """Return the momentum segment of a parameter's segment."""
        return cls(**vars(segment) | {"name": MOMENTUM + segment.name})


MOMENTUM = "outer_momentum."
"""Prefix of the names of momentum tensors. The parameter's name follows."""
LARGEST_MOMENTUM = 1 << 52
"""Largest magnitude of a momentum. `optim.outer_momentum` shows that no apply exceeds it."""


def cut(config: ModelConfig, tiers: int) -> tuple[Segment, ...]:
    """Return all segments of a run's model in canonical order: level descending, then name."""
    held = [config.parameter_shapes(tier) for tier in range(tiers)]
    below: list[Mapping[str, tuple[int, ...]]] = [*held[1:], {}]
    return tuple(
        _segment(name, level, config.elastic_dim(name), held[level][name], below[level].get(name))
        for level in reversed(range(tiers))
        for name in sorted(held[level])
        if held[level][name] != below[level].get(name)
    )


def prefix(shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices of the full tensor that a tier's tensor of this shape holds."""
    return tuple(map(slice, shape))


def checked_level(level: int, levels: int) -> int:
    """Return the level if it exists among `levels`. Raises SchemaError."""
    if not 0 <= level < levels:
        raise SchemaError(
            f"level {level} is out of range", f"This run has levels 0 to {levels - 1}"
        )
    return level


def _segment(
    name: str,
    level: int,
    dim: Literal[0, 1] | None,
    held: tuple[int, ...],
    below: tuple[int, ...] | None,
) -> Segment:
    if dim is None:
        return Segment(name, level, None, 0, held[0], held)
    start = 0 if below is None else below[dim]
    stop = held[dim]
    return Segment(
        name,
        level,
        dim,
        start,
        stop,
        tuple(stop - start if axis == dim else n for axis, n in enumerate(held)),
    )


# Canonical JSON gives one document the same bytes on every machine: sorted keys, no spaces, ASCII,
# and floats as the text of their shortest repr.
def canonical(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document without floats."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping whose floats are the text of their shortest repr."""
    return {
        key: repr(value) if isinstance(value, float) else value for key, value in values.items()
    }


def decimal(text: object, label: str) -> float:
    """Return the number in a text, or NaN unless it is a short text. Raises SchemaError."""
    try:
        return float(text) if isinstance(text, str) and len(text) <= 32 else math.nan
    except ValueError:
        raise SchemaError(f"the schema's {label} is not a decimal: {text!r}") from None


_SIZES = {"U8": 1, "F32": 4}  # bytes of an element, by its name in the format
# bytes of the header's length; alignment of the first tensor
_LENGTH = 8
_ALIGNED = 8


# safetensors' own writer orders metadata randomly. This header orders tensors by name, and the file
# can be written one tensor at a time.
def header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the bytes before the tensors (U8 or F32), which follow in the order of names."""
    places: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (kind, shape) in sorted(tensors.items()):
        start, end = end, end + _SIZES[kind] * math.prod(shape)
        places[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = canonical(places)
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(_LENGTH, "little") + text


ELEMENT_BYTES = 4  # an fp32 number of the model's state

# Keys of the model's config that change neither tensors nor gradients, and so are not part of the
# schema.
_NOT_IN_SCHEMA = {
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "max_position_embeddings",
}


class StateInputs(msgspec.Struct, frozen=True):
    """The inputs of a state schema. Everything else in its document follows from them."""

    model: dict[str, bool | int | str | list[dict[str, list[int]]] | None]
    widths: list[int]


@dataclass(frozen=True)
class StateSchema:
    """A run's model state. Equal schemas have equal documents."""

    config: ModelConfig
    tiers: int
    segments: tuple[Segment, ...]  # canonical order: level descending, then name

    @property
    def levels(self) -> int:
        """Return the number of levels, which equals the number of tiers."""
        return self.tiers

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the sizes of the tiers (`ModelConfig.size`): FFN hidden units by default."""
        return tuple(self.config.size(tier) for tier in range(self.tiers))

    def of_level(self, level: int) -> tuple[Segment, ...]:
        """Return a level's segments in canonical order. Raises SchemaError."""
        return self._by_level[checked_level(level, self.levels)]

    def held_by(self, tier: int) -> tuple[Segment, ...]:
        """Return the segments of a tier-k replica (levels >= k) in canonical order. Raises
        SchemaError.
        """
        checked_level(tier, self.levels)
        return tuple(segment for segment in self.segments if segment.level >= tier)

    def parameters(self, tier: int = 0) -> int:
        """Return the number of parameters of a tier-k replica."""
        return sum(segment.numel for segment in self.held_by(tier))

    def document(self) -> dict[str, Any]:
        """Return the schema as JSON values, without floats."""
        return {
            "model": portable(_said(self.config) | {"model_type": self.config.MODEL_TYPE}),
            "dtype": "float32",
            "widths": list(self.widths),
            "segments": [asdict(segment) for segment in self.segments],
        }

    def with_momentum(self) -> StateSchema:
        """Return this schema with each parameter's momentum, after the parameters of its level.

        Vectors that balance experts have none (`optim.moe_bias`).
        """
        return replace(
            self,
            segments=tuple(
                segment
                for level in reversed(range(self.levels))
                for segment in (*self.of_level(level), *self._momentum_of(level))
            ),
        )

    def _momentum_of(self, level: int) -> Iterator[Segment]:
        for segment in self.of_level(level):
            if not self.config.balances(segment.name):
                yield MomentumSegment.of(segment)

    def momentum_shapes(self, tier: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a tier's momentum tensors by name; empty if there are none."""
        names = {
            segment.name.removeprefix(MOMENTUM)
            for segment in self.held_by(tier)
            if isinstance(segment, MomentumSegment)
        }
        shapes = self.config.parameter_shapes(tier)
        return {MOMENTUM + name: shape for name, shape in shapes.items() if name in names}

    @cached_property
    def _by_level(self) -> tuple[tuple[Segment, ...], ...]:
        return tuple(
            tuple(s for s in self.segments if s.level == level) for level in range(self.levels)
        )


def state_schema(hf_config: Mapping[str, Any], tiers: int) -> StateSchema:
    """Return the state schema of a run from a `config.json` of any tier.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return _cut(config_of(hf_config), tiers)


def state_of_inputs(given: StateInputs) -> StateSchema:
    """Return the state schema that a document's inputs give. Raises as `state_schema` does."""
    made = config_type(given.model)
    fields = [(key, field) for key, field in made.model_fields.items() if field.annotation is float]
    reals = [
        key
        for key, _ in fields
        if key not in _NOT_IN_SCHEMA and (key in given.model or key not in made.LATER)
    ]
    document = given.model | {key: decimal(given.model.get(key), key) for key in reals}
    return _cut(made.checked(document), len(given.widths))


def same_model(one: ModelConfig, other: ModelConfig) -> bool:
    """Return whether two configs are equal in all fields that a schema contains."""
    return one.MODEL_TYPE == other.MODEL_TYPE and _said(one) == _said(other)


def _said(config: ModelConfig) -> dict[str, Any]:
    """Return a config's fields that belong to a schema and are not at an omitted default."""
    fields = type(config).model_fields
    silent = {key for key in config.LATER if getattr(config, key) == fields[key].default}
    return config.model_dump(exclude=_NOT_IN_SCHEMA | silent)


def _cut(config: ModelConfig, tiers: int) -> StateSchema:
    if not 1 <= tiers <= MAX_TIERS:
        raise SchemaError(f"a run has 1 to {MAX_TIERS} tiers, not {tiers}")
    config.width(tiers - 1)
    return StateSchema(config, tiers, cut(config, tiers))


__all__ = [
    "ELEMENT_BYTES",
    "SchemaError",
    "Segment",
    "StateInputs",
    "StateSchema",
    "state_of_inputs",
    "state_schema",
]
