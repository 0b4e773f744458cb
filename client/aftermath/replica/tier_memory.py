"""Compute the minimum memory that a tier requires, from the schema.

It assumes the smallest passes that a member falls back to: one sequence with activation
checkpointing. A test compares the result with measured memory (docs/operations.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aftermath.optim.schema import Schema

_STATE = 16  # bytes per parameter: weight, gradient, delta, look-ahead copy
_MOMENT = 8  # bytes of a moment and its copy
_MOMENTUM = 8  # bytes of the outer momentum
_FLOAT = 4
# Numbers per position while the gradients of one layer, or of the head, are computed.
_LAYER_HIDDEN = 11
_LAYER_WIDTH = 6
_HEAD = 3
_HELD = 4.5  # bytes per number of each member's stored result
_SUMMED = 3.0  # bytes per number while a level is summed
# For results with every number: bytes per number of each result and of the sum; bytes of batches.
_DIGIT = 1.0
_STEP = 4.5
_BATCHES = 20 << 20
_RUNTIME = {"cuda": 600 << 20}  # the device's own context, workspaces, fragments


def state_bytes(schema: Schema, tier: int) -> int:
    """Return the bytes of weights and optimizer state."""
    momentum = _MOMENTUM if schema.optimizer.outer_momentum else 0
    each = _STATE + _MOMENT * schema.optimizer.moments + momentum
    return each * schema.state.parameters(tier)


def least_bytes(schema: Schema, tier: int, seq_len: int, members: int) -> int:
    """Return the peak bytes of a member with the smallest passes and `members` results."""
    return state_bytes(schema, tier) + max(
        _pass_bytes(schema, tier, seq_len), _result_bytes(schema, tier, members)
    )


def needs(schema: Schema, seq_len: int, members: int, device: str = "cpu") -> list[int]:
    """Return, by tier, `least_bytes` plus the device's overhead."""
    fixed = _RUNTIME.get(device, 0)
    return [
        fixed + least_bytes(schema, tier, seq_len, members) for tier in range(schema.state.tiers)
    ]


def first_fitting(needed: list[int], free: int) -> int | None:
    """Return the largest tier that fits into `free` bytes, or None."""
    return next((tier for tier, size in enumerate(needed) if size <= free), None)


def _pass_bytes(schema: Schema, tier: int, seq_len: int) -> int:
    config = schema.state.config
    hidden = config.parameter_shapes()[config.tables()[0]][1]
    layers = _layer_count(config.parameter_shapes())
    layer = _LAYER_HIDDEN * hidden + _LAYER_WIDTH * config.width(tier)
    return _FLOAT * seq_len * (layers * hidden + max(layer, _HEAD * config.vocab_size))


def _layer_count(names: Iterable[str]) -> int:
    """Return the number of layers of a model from its parameters' names.

    The first number of a name is the layer's. Documents have many keys for the number of layers.
    """
    numbers = (re.search(r"(?:^|\.)(\d+)\.", name) for name in names)
    return 1 + max((int(number[1]) for number in numbers if number), default=-1)


def _result_bytes(schema: Schema, tier: int, members: int) -> int:
    levels = range(tier, schema.state.levels)
    entries = [schema.results.entries(level) for level in levels]
    if all(map(schema.results.is_dense, levels)):
        return _BATCHES + round((members * _DIGIT + _STEP) * sum(entries))
    return round(members * (_HELD * sum(entries) + _SUMMED * max(entries)))
