"""What DisTrO keeps for itself can be put away: another replica with the same weights goes on from it bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aftermath.model.schema import Schema
from aftermath.optim.codec import decode_level
from aftermath.optim.distro import BadState, Distro
from optim.optim_oracle import RAGGED, toy_schema

SCHEMA = toy_schema(weight_decay=0.1, topk_embeddings=9, **RAGGED)


def replica(schema: Schema, tier: int) -> tuple[dict[str, Tensor], Distro]:
    params = tensors(schema, tier, 0)
    return params, Distro(schema, tier, params)


def tensors(schema: Schema, tier: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = schema.config.parameter_shapes(tier)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def train(params: dict[str, Tensor], distro: Distro, tier: int, step: int) -> dict[int, bytes]:
    with distro.lookahead(1e-3):
        grads = {name: tensor + 0.1 * params[name] for name, tensor in tensors(SCHEMA, tier, 10 + step).items()}
    made = distro.encode(grads, 1e-3)
    distro.apply({level: [decode_level(data, SCHEMA, level)] for level, data in made.items()}, 1e-3)
    return made


@pytest.mark.parametrize("tier", range(3))
@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_replica_goes_on_from_it_bit_by_bit(tier: int, done: int) -> None:
    params, distro = replica(SCHEMA, tier)
    for step in range(done):
        train(params, distro, tier, step)
    kept, weights = distro.state(), {name: tensor.clone() for name, tensor in params.items()}
    expected = [train(params, distro, tier, step) for step in range(done, done + 3)]
    other = Distro(SCHEMA, tier, weights)
    other.restore(kept)
    assert [train(weights, other, tier, step) for step in range(done, done + 3)] == expected
    assert all(torch.equal(weights[name], tensor) for name, tensor in params.items())
    fresh = tensors(SCHEMA, tier, 0)
    if done:  # without what was kept it would not be the same
        assert train(fresh, Distro(SCHEMA, tier, fresh), tier, done) != expected[0]


def test_what_was_taken_over_may_be_changed_afterwards() -> None:
    params, distro = replica(SCHEMA, 0)
    train(params, distro, 0, 0)
    kept, weights = distro.state(), {name: tensor.clone() for name, tensor in params.items()}
    other = Distro(SCHEMA, 0, weights)
    other.restore(kept)
    for tensor in kept.values():
        tensor.zero_()
    assert train(weights, other, 0, 1) == train(params, distro, 0, 1)


def test_what_was_put_away_does_not_change_any_more() -> None:
    params, distro = replica(SCHEMA, 0)
    train(params, distro, 0, 0)
    kept = distro.state()
    before = {name: tensor.clone() for name, tensor in kept.items()}
    train(params, distro, 0, 1)
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.items())


def _without(state: dict[str, Tensor]) -> None:
    del state["delta.0.0"]


def _too_much(state: dict[str, Tensor]) -> None:
    state["delta.9.0"] = torch.zeros(1)


def _shape(state: dict[str, Tensor]) -> None:
    state["delta.1.0"] = state["delta.1.0"][:, :-1]


def _type(state: dict[str, Tensor]) -> None:
    state["values.1.0"] = state["values.1.0"].double()


def _infinite(state: dict[str, Tensor]) -> None:
    state["delta.2.0"][0, 0, 0] = float("inf")


def _outside(state: dict[str, Tensor]) -> None:
    state["indices.2.0"][0, 0] = 60_000


def _negative(state: dict[str, Tensor]) -> None:
    state["indices.2.0"][0, 0] = -1


@pytest.mark.parametrize("spoil", [_without, _too_much, _shape, _type, _infinite, _outside, _negative])
def test_what_does_not_fit_is_refused_and_changes_nothing(spoil: Callable[[dict[str, Tensor]], None]) -> None:
    params, distro = replica(SCHEMA, 0)
    train(params, distro, 0, 0)
    before, wrong = distro.state(), distro.state()
    spoil(wrong)
    with pytest.raises(BadState):
        distro.restore(wrong)
    after = distro.state()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_state_of_another_tier_is_refused() -> None:
    _, small = replica(SCHEMA, 2)
    _, large = replica(SCHEMA, 0)
    with pytest.raises(BadState, match="lacks or has too much"):
        large.restore(small.state())
