"""The tiers that a `config.json` names (`matformer_tiers`): layers, heads and widths per tier.

An entry inherits every size that it does not name from the tier before. Each tier is a part of the
tier before it. Sources: MatFormer and its Mix'n'Match (arXiv 2310.07707) for widths; LayerDrop
(arXiv 1909.11556) for skipped layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from pydantic import BaseModel, ConfigDict, model_serializer

from aftermath.model.config import MAX_TIERS, ModelConfigError

# An entry names `layers` by their numbers in the full model, and for each of them
# `intermediate_size` hidden units and `num_key_value_heads` heads: one number for all, or one per
# layer. Query heads follow their key head. `moe_intermediate_size` is the width of every expert.
# Entries are stored with one number per layer, so equal tiers are equal documents.
KEY = "matformer_tiers"
SIZES = ("intermediate_size", "num_key_value_heads", "moe_intermediate_size")
PARTS = ("layers", *SIZES)
"""What an entry may name."""


class TierShape(BaseModel):
    """A tier's hidden units and heads per layer; 0 if the layer has no such part."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    layers: tuple[int, ...]
    intermediate_size: tuple[int, ...]
    num_key_value_heads: tuple[int, ...]
    moe_intermediate_size: tuple[int, ...]
    """Hidden units of every expert, per layer."""

    @classmethod
    def of(cls, layers: Sequence[tuple[int, int, int]]) -> TierShape:
        """Return a shape of the first layers, with these sizes in the order of `SIZES`."""
        return cls(
            layers=tuple(range(len(layers))),
            **dict(zip(SIZES, zip(*layers, strict=True), strict=True)),
        )

    @model_serializer
    def document(self) -> dict[str, tuple[int, ...]]:
        """Return the entry as in a `config.json`."""
        parts = {part: tuple(size for size in getattr(self, part) if size) for part in SIZES}
        return {"layers": self.layers} | {part: sizes for part, sizes in parts.items() if sizes}

    @property
    def units(self) -> int:
        """Return the sum of layers, heads and hidden units: a measure of the size."""
        return len(self.layers) + sum(sum(getattr(self, part)) for part in SIZES)

    def of_layer(self, layer: int) -> tuple[int, int]:
        """Return (hidden units, heads) of a layer; for experts the hidden units of each."""
        place = self.layers.index(layer)
        return self.intermediate_size[place] or self.moe_intermediate_size[
            place
        ], self.num_key_value_heads[place]


def tier_shapes(entries: object, whole: TierShape, allowed: Sequence[str]) -> tuple[TierShape, ...]:
    """Return the shapes of tiers 1, 2, ... from the entries of `matformer_tiers`.

    An entry refers to the tier before it, the first one to `whole`. `allowed` are the parts that
    the architecture can cut. Raises ModelConfigError.
    """
    if not isinstance(entries, list | tuple) or not 1 <= len(entries) < MAX_TIERS:
        raise _wrong(
            KEY, f"must be a list of 1 to {MAX_TIERS - 1} entries, one for each tier after 0"
        )
    shapes = [whole]
    for number, entry in enumerate(entries, 1):
        shapes.append(_shape(f"{KEY}[{number - 1}]", entry, shapes[-1], allowed))
    return tuple(shapes[1:])


def _shape(where: str, entry: object, before: TierShape, allowed: Sequence[str]) -> TierShape:
    if isinstance(entry, TierShape):
        entry = entry.model_dump()
    if not isinstance(entry, Mapping) or not entry:
        raise _wrong(where, f"must set one or more of {', '.join(allowed)}")
    if strange := sorted(str(key) for key in entry if key not in PARTS):
        raise _wrong(f"{where}.{strange[0]}", f"is an unknown key; allowed: {', '.join(allowed)}")
    if other := next((part for part in PARTS if part in entry and part not in allowed), None):
        raise ModelConfigError(
            f"config.json: {where} cuts {other}, which this model does not support",
            f"Use only {', '.join(allowed)}",
        )
    layers = _layers(f"{where}.layers", entry.get("layers", before.layers), before)
    places = [before.layers.index(layer) for layer in layers]
    sizes = {
        part: _sizes(
            f"{where}.{part}", entry.get(part), [getattr(before, part)[place] for place in places]
        )
        for part in SIZES
    }
    shape = TierShape(layers=layers, **sizes)
    if shape == before:
        raise _wrong(where, "must be smaller than the tier before it")
    return shape


def _layers(where: str, value: object, before: TierShape) -> tuple[int, ...]:
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(_is_number(layer) for layer in value)
    ):
        raise _wrong(where, "must be a list of layer numbers")
    layers = tuple(value)
    if any(one >= other for one, other in itertools.pairwise(layers)):
        raise _wrong(where, "must list each layer once, in ascending order")
    if absent := [layer for layer in layers if layer not in before.layers]:
        raise _wrong(where, f"names layer {absent[0]}, which the tier before it lacks")
    return layers


def _sizes(where: str, value: object, most: Sequence[int]) -> tuple[int, ...]:
    """Return one number per kept layer, at most the previous tier's; 0 where that is 0."""
    if value is None:
        return tuple(most)
    having = [limit for limit in most if limit]
    if not having:
        raise _wrong(where, "does not apply to any layer that the tier keeps")
    listed = value if isinstance(value, list | tuple) else [value] * len(having)
    sizes = [size for size in listed if _is_number(size)]
    if len(listed) != len(having) or len(sizes) != len(having):
        which = "each layer that the tier keeps" + (
            " and that has this size" if len(having) < len(most) else ""
        )
        raise _wrong(where, f"must be a whole number, or a list of {len(having)}: one for {which}")
    for size, limit in zip(sizes, having, strict=True):
        if not 1 <= size <= limit:
            raise _wrong(
                where, f"is {size}; it must be from 1 to {limit}, the size in the tier before it"
            )
    left = iter(sizes)
    return tuple(next(left) if limit else 0 for limit in most)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong(where: str, why: str) -> ModelConfigError:
    return ModelConfigError(
        f"config.json: {where} {why}", "See the examples in docs/models.md#tiers"
    )


__all__ = ["KEY", "PARTS", "TierShape", "tier_shapes"]
