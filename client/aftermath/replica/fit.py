"""What a member of a tier holds in memory at most, reckoned from its schema, and the first tier that fits.

Decided: it is reckoned with passes of one sequence and layers that are computed twice, which is what a member falls
back to; a tier fits where that is. docs/operations.md has what was counted, and a test puts both side by side.
"""

from __future__ import annotations

from aftermath.optim.schema import Schema

_STATE = 16  # bytes a parameter: weight, gradient, delta, and the copy of the look-ahead
_MOMENT = 8  # and a copy of it
_FLOAT = 4
_LAYER_HIDDEN, _LAYER_WIDTH, _HEAD = 11, 6, 3  # numbers of a position while one layer, or the head, has its gradients
_HELD, _SUMMED = 4.5, 3.0  # bytes a number of each member's result, while it is kept and while a level is summed
_DIGIT, _STEP, _BATCHES = 1.0, 4.5, 20 << 20  # of results with every number: of each member's, of all, and beside them
_RUNTIME = {"cuda": 600 << 20}  # what a device needs for itself: its context, workspaces, fragments


def state_bytes(schema: Schema, tier: int) -> int:
    """What stays: weights, and what is learnt beside them."""
    return (_STATE + _MOMENT * schema.optimizer.moments) * schema.state.parameters(tier)


def least_bytes(schema: Schema, tier: int, seq_len: int, members: int) -> int:
    """What a member of the tier holds at most when it takes the least it can, with the results of so many members."""
    return state_bytes(schema, tier) + max(_pass_bytes(schema, tier, seq_len), _result_bytes(schema, tier, members))


def needs(schema: Schema, seq_len: int, members: int, device: str = "cpu") -> list[int]:
    """By tier: `least_bytes` on a device of this kind, with what the device needs for itself."""
    own = _RUNTIME.get(device, 0)
    return [own + least_bytes(schema, tier, seq_len, members) for tier in range(schema.state.tiers)]


def first_fitting(needed: list[int], free: int) -> int | None:
    """The largest tier that fits into so many bytes, None where none does."""
    return next((tier for tier, size in enumerate(needed) if size <= free), None)


def _pass_bytes(schema: Schema, tier: int, seq_len: int) -> int:
    config = schema.state.config
    hidden = config.parameter_shapes()[config.tables()[0]][1]
    document = config.to_hf()
    layers = int(document.get("num_hidden_layers") or document.get("n_layer") or 0)
    layer = _LAYER_HIDDEN * hidden + _LAYER_WIDTH * config.width(tier)
    return _FLOAT * seq_len * (layers * hidden + max(layer, _HEAD * config.vocab_size))


def _result_bytes(schema: Schema, tier: int, members: int) -> int:
    levels = range(tier, schema.state.levels)
    entries = [schema.results.entries(level) for level in levels]
    if all(map(schema.results.whole, levels)):
        return _BATCHES + round((members * _DIGIT + _STEP) * sum(entries))
    return round(members * (_HELD * sum(entries) + _SUMMED * max(entries)))
