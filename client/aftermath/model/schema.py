"""The state schema: the tensors of a run's model and the levels they are cut into.

It does not depend on the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from aftermath.base.canonical_json import decimal, portable
from aftermath.base.errors import SchemaError
from aftermath.model.architectures import config_of, config_type
from aftermath.model.config import MAX_TIERS, ModelConfig
from aftermath.model.levels import MOMENTUM, MomentumSegment, Segment, checked_level, cut

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
            "model": portable(
                _config_document(self.config) | {"model_type": self.config.MODEL_TYPE}
            ),
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


def state_of_inputs(inputs: StateInputs) -> StateSchema:
    """Return the state schema that a document's inputs give. Raises as `state_schema` does."""
    config = config_type(inputs.model)
    fields = [
        (key, field) for key, field in config.model_fields.items() if field.annotation is float
    ]
    reals = [
        key
        for key, _ in fields
        if key not in _NOT_IN_SCHEMA and (key in inputs.model or key not in config.LATER)
    ]
    document = inputs.model | {key: decimal(inputs.model.get(key), key) for key in reals}
    return _cut(config.checked(document), len(inputs.widths))


def same_model(one: ModelConfig, other: ModelConfig) -> bool:
    """Return whether two configs are equal in all fields that a schema contains."""
    return one.MODEL_TYPE == other.MODEL_TYPE and _config_document(one) == _config_document(other)


def _config_document(config: ModelConfig) -> dict[str, Any]:
    """Return a config's fields that belong to a schema and are not at an omitted default."""
    fields = type(config).model_fields
    silent = {key for key in config.LATER if getattr(config, key) == fields[key].default}
    return config.model_dump(exclude=_NOT_IN_SCHEMA | silent)


def _cut(config: ModelConfig, tiers: int) -> StateSchema:
    if not 1 <= tiers <= MAX_TIERS:
        raise SchemaError(f"a run has 1 to {MAX_TIERS} tiers, not {tiers}")
    config.width(tiers - 1)
    return StateSchema(config, tiers, cut(config, tiers))
