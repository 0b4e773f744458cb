"""The state schema: which tensors a run's model has, and which levels they are cut into.

Decided: it knows nothing of what members exchange. What replicas are compared by, handed on and kept by follows from it
alone, whichever optimizer a run has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import msgspec

from aftermath.model.architectures import config_of, config_type
from aftermath.model.canonical import decimal, portable
from aftermath.model.config import MAX_TIERS, ModelConfig
from aftermath.model.levels import SchemaError, Segment, checked_level, cut

ELEMENT_BYTES = 4  # of the model's state, fp32

# Keys of the model's config that change no tensor and no gradient, and therefore are not part of the schema.
_NOT_IN_SCHEMA = {"initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings"}


class StateInputs(msgspec.Struct, frozen=True):
    """What a state schema's document is built from; the rest of it follows and is compared whole."""

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
        """Levels are 0 .. levels-1; there are as many as tiers."""
        return self.tiers

    @property
    def widths(self) -> tuple[int, ...]:
        """What tells tiers 0, 1, ... apart (`ModelConfig.size`): FFN hidden units, unless tiers keep what they name."""
        return tuple(self.config.size(tier) for tier in range(self.tiers))

    def of_level(self, level: int) -> tuple[Segment, ...]:
        """The segments of one level in canonical order. Raises SchemaError if there is no such level."""
        return self._by_level[checked_level(level, self.levels)]

    def held_by(self, tier: int) -> tuple[Segment, ...]:
        """The segments of a tier-k replica (levels >= k) in canonical order. Raises SchemaError."""
        checked_level(tier, self.levels)
        return tuple(segment for segment in self.segments if segment.level >= tier)

    def parameters(self, tier: int = 0) -> int:
        """Number of parameters of a tier-k replica."""
        return sum(segment.numel for segment in self.held_by(tier))

    def document(self) -> dict[str, Any]:
        """All of it as JSON has it, without floats."""
        return {
            "model": portable(_said(self.config) | {"model_type": self.config.MODEL_TYPE}),
            "dtype": "float32",
            "widths": list(self.widths),
            "segments": [asdict(segment) for segment in self.segments],
        }

    @cached_property
    def _by_level(self) -> tuple[tuple[Segment, ...], ...]:
        return tuple(tuple(s for s in self.segments if s.level == level) for level in range(self.levels))


def state_schema(hf_config: Mapping[str, Any], tiers: int) -> StateSchema:
    """The state schema of a run from a model's `config.json` (of any tier: the full model is what counts).

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return _cut(config_of(hf_config), tiers)


def state_of_inputs(given: StateInputs) -> StateSchema:
    """The state schema that a document's inputs give. Raises as `state_schema` does."""
    made = config_type(given.model)
    fields = [(key, field) for key, field in made.model_fields.items() if field.annotation is float]
    reals = [key for key, _ in fields if key not in _NOT_IN_SCHEMA and (key in given.model or key not in made.LATER)]
    said = given.model | {key: decimal(given.model.get(key), key) for key in reals}
    return _cut(made.checked(said), len(given.widths))


def same_model(one: ModelConfig, other: ModelConfig) -> bool:
    """Whether two configs say the same in all that a schema has."""
    return one.MODEL_TYPE == other.MODEL_TYPE and _said(one) == _said(other)


def _said(config: ModelConfig) -> dict[str, Any]:
    """A config's fields, as far as they belong to a schema and say something."""
    fields = type(config).model_fields
    silent = {key for key in config.LATER if getattr(config, key) == fields[key].default}
    return config.model_dump(exclude=_NOT_IN_SCHEMA | silent)


def _cut(config: ModelConfig, tiers: int) -> StateSchema:
    if not 1 <= tiers <= MAX_TIERS:
        raise SchemaError(f"a run has 1 to {MAX_TIERS} tiers, not {tiers}")
    config.width(tiers - 1)
    return StateSchema(config, tiers, cut(config, tiers))


__all__ = ["ELEMENT_BYTES", "SchemaError", "Segment", "StateInputs", "StateSchema", "state_of_inputs", "state_schema"]
