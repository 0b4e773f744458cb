"""Saved optimizer state: another replica with the same weights continues from it bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aftermath.optim.blocks import UNUSED
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import BadState, PseudoGradient
from aftermath.optim.schema import Schema
from aftermath.rules.sparseloco import SparseLoCo
from optim.optim_oracle import RAGGED, toy_schema
from optim.optim_replica import encode, gradients, replica, tensors

SCHEMA = toy_schema(weight_decay=0.1, topk_embeddings=9, **RAGGED)


def train(params: dict[str, Tensor], engine: Engine, tier: int, step: int) -> dict[int, bytes]:
    """Train one round, with gradients that depend on the weights."""
    grads = {
        name: tensor + 0.1 * params[name] for name, tensor in gradients(SCHEMA, tier, step).items()
    }
    result = encode(engine, grads, 1e-3, 1e-3)
    engine.apply(
        {level: [decode_level(data, SCHEMA.results, level)] for level, data in result.items()}, 1e-3
    )
    return result


@pytest.mark.parametrize("tier", range(3))
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_restored_replica_continues_bit_by_bit(tier: int, steps: int) -> None:
    params, engine = replica(SCHEMA, tier)
    for step in range(steps):
        train(params, engine, tier, step)
    state = engine.state()
    weights = {name: tensor.clone() for name, tensor in params.items()}
    expected = [train(params, engine, tier, step) for step in range(steps, steps + 3)]
    other = Engine(SCHEMA, tier, weights)
    other.restore(state)
    assert [train(weights, other, tier, step) for step in range(steps, steps + 3)] == expected
    assert all(torch.equal(weights[name], tensor) for name, tensor in params.items())
    fresh = tensors(SCHEMA, tier, 0)
    if steps:  # without the restored state the result would differ
        assert train(fresh, Engine(SCHEMA, tier, fresh), tier, steps) != expected[0]


def test_restored_state_does_not_share_memory() -> None:
    params, engine = replica(SCHEMA, 0)
    train(params, engine, 0, 0)
    state = engine.state()
    weights = {name: tensor.clone() for name, tensor in params.items()}
    other = Engine(SCHEMA, 0, weights)
    other.restore(state)
    for tensor in state.values():
        tensor.zero_()
    assert train(weights, other, 0, 1) == train(params, engine, 0, 1)


def test_saved_state_does_not_change_later() -> None:
    params, engine = replica(SCHEMA, 0)
    train(params, engine, 0, 0)
    state = engine.state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    train(params, engine, 0, 1)
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


def _without(state: dict[str, Tensor]) -> None:
    del state["result.residual.0.0"]


def _too_much(state: dict[str, Tensor]) -> None:
    state["result.residual.9.0"] = torch.zeros(1)


def _shape(state: dict[str, Tensor]) -> None:
    state["result.residual.1.0"] = state["result.residual.1.0"][:, :-1]


def _type(state: dict[str, Tensor]) -> None:
    state["result.values.1.0"] = state["result.values.1.0"].double()


def _infinite(state: dict[str, Tensor]) -> None:
    state["result.residual.2.0"][0, 0, 0] = float("inf")


def _outside(state: dict[str, Tensor]) -> None:
    state["result.indices.2.0"][0, 0] = 60_000


def _negative(state: dict[str, Tensor]) -> None:
    state["result.indices.2.0"][0, 0] = -1


def _not_a_number(state: dict[str, Tensor]) -> None:
    state["result.values.2.0"][0, 0] = float("nan")


def _swapped(state: dict[str, Tensor]) -> None:
    for kind in ("indices", "values"):
        state[f"result.{kind}.0.0"][0, :2] = state[f"result.{kind}.0.0"][0, :2].flip(0)


def _twice(state: dict[str, Tensor]) -> None:
    state["result.indices.0.0"][0, 1] = state["result.indices.0.0"][0, 0]


def _zero(state: dict[str, Tensor]) -> None:
    state["result.values.0.0"][0, 0] = 0.0


def _unused_first(state: dict[str, Tensor]) -> None:
    state["result.indices.0.0"][0, 0] = UNUSED
    state["result.values.0.0"][0, 0] = 0.0


def _unused_with_a_value(state: dict[str, Tensor]) -> None:
    state["result.indices.0.0"][0, -1] = UNUSED


def _with_gaps(state: dict[str, Tensor]) -> None:
    residual = state["result.residual.0.0"]
    state["result.residual.0.0"] = torch.stack([residual, residual], dim=-1)[..., 0]


SPOILT = [_without, _too_much, _shape, _type, _infinite, _outside, _negative]
SPOILT += [_not_a_number, _swapped, _twice, _zero, _unused_first, _unused_with_a_value, _with_gaps]


@pytest.mark.parametrize("spoil", SPOILT)
def test_mismatched_state_is_refused_and_changes_nothing(
    spoil: Callable[[dict[str, Tensor]], None],
) -> None:
    params, engine = replica(SCHEMA, 0)
    train(params, engine, 0, 0)
    before = engine.state()
    wrong = engine.state()
    spoil(wrong)
    with pytest.raises(BadState):
        engine.restore(wrong)
    after = engine.state()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_state_of_another_tier_is_refused() -> None:
    _, small = replica(SCHEMA, 2)
    _, large = replica(SCHEMA, 0)
    with pytest.raises(BadState, match="missing or unexpected"):
        large.restore(small.state())


def _off(values: Tensor, bits: int) -> None:
    values[0, 0] *= 1.25


def _of_another_block(values: Tensor, bits: int) -> None:
    values[0, 1] *= 4


def _beyond(values: Tensor, bits: int) -> None:
    values[0] *= 2.0**60


def _of_two_bits(values: Tensor, bits: int) -> None:
    values[0, 0] *= 3 if bits == 1 else 5


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("spoil", [_off, _of_another_block, _beyond, _of_two_bits])
def test_state_with_impossible_values_is_refused(
    spoil: Callable[[Tensor, int], None], bits: int
) -> None:
    settings = SparseLoCo(topk=4, topk_embeddings=4, chunk=8, bits=bits)
    results = Schema(SCHEMA.state, settings).results
    params = tensors(SCHEMA, 0, 0)
    feedback = ErrorFeedback(results, 0, params, 0.9)
    feedback.compress(PseudoGradient(gradients(SCHEMA, 0, 0), 1.0, 0.5))
    state = feedback.state()
    feedback.restore(state)
    spoil(state["values.0.0"], bits)
    with pytest.raises(BadState, match=r"values\.0\.0"):
        feedback.restore(state)
