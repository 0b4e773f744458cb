"""Metrics of results: correct values, and no effect on the training."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from aftermath.model.segments import view
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine, Trained
from aftermath.optim.schema import Schema
from aftermath.optim.vote_tensors import dense
from optim.optim_oracle import toy_inner, toy_schema
from optim.optim_replica import SEQUENCES, bits, gradients, replica

# blocks of 8 without padding
WHOLE = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 64}
SCHEMAS = [
    toy_schema(**WHOLE),
    toy_schema(quantize_1bit=False, weight_decay=0.1),
    toy_inner(),
    toy_inner(bits=1, inner_optimizer="muon"),
]
every = pytest.mark.parametrize("schema", SCHEMAS, ids=["signs", "floats", "2 bits", "1 bit, muon"])


def train(schema: Schema, tier: int, engine: Engine, step: int, measured: bool) -> Trained:
    def backward(_: Tensor) -> float:
        for name, gradient in gradients(schema, tier, step).items():
            engine._params[name].grad = gradient.clone()
        return 0.0

    return engine.train(SEQUENCES, backward, 0.1, 0.1, measured)


@every
@pytest.mark.parametrize("tier", [0, 2])
def test_measuring_changes_no_bit_of_the_training(schema: Schema, tier: int) -> None:
    plain = replica(schema, tier)
    measured_replica = replica(schema, tier)
    for step in range(4):
        one = train(schema, tier, plain[1], step, False)
        other = train(schema, tier, measured_replica[1], step, True)
        assert one.payloads == other.payloads
        assert one.measured is None
        assert other.measured is not None
        assert list(other.measured) == list(range(tier, 3))
        for params, engine in (plain, measured_replica):
            votes = {
                level: [decode_level(d, schema.results, level)] for level, d in one.payloads.items()
            }
            engine.apply(votes, 0.1)
            assert params
    assert bits(plain[0]) == bits(measured_replica[0])
    assert bits(plain[1].state()) == bits(measured_replica[1].state())


def norm(schema: Schema, level: int, params: Mapping[str, Tensor]) -> float:
    return math.sqrt(
        sum(float(view(params, s).double().square().sum()) for s in schema.state.of_level(level))
    )


def test_metrics_are_norms_and_the_sent_energy() -> None:
    """With float votes, the first residual is rate times gradient. After sending it lacks the
    result, which `dense` returns as tensors.
    """
    schema = toy_schema(**WHOLE, quantize_1bit=False)
    _, engine = replica(schema, 0)
    trained = train(schema, 0, engine, 7, True)
    learnt = {name: 0.1 * tensor for name, tensor in gradients(schema, 0, 7).items()}
    votes = {
        level: decode_level(data, schema.results, level) for level, data in trained.payloads.items()
    }
    sent = dict(dense(schema, votes, 0.1))
    left = {name: tensor - sent[name] for name, tensor in learnt.items()}
    assert trained.measured is not None
    for level, metrics in trained.measured.items():
        gradient = norm(schema, level, learnt)
        assert metrics.gradient_norm == pytest.approx(gradient, rel=1e-4)
        assert metrics.residual_norm == pytest.approx(norm(schema, level, left), rel=1e-3)
        assert metrics.carried == pytest.approx(
            (norm(schema, level, sent) / gradient) ** 2, rel=1e-3
        )


def test_lattice_rounding_error_does_not_count_as_carried() -> None:
    schema = toy_inner(decay=1.0, inner_steps=1)
    _, engine = replica(schema, 0)
    trained = train(schema, 0, engine, 7, True)
    residual = {
        name: t for name, t in engine.state().items() if name.startswith("result.residual.")
    }
    assert trained.measured is not None
    for level, metrics in trained.measured.items():
        own = [t for name, t in residual.items() if name.startswith(f"result.residual.{level}.")]
        whole = sum(float(t.double().square().sum()) for t in own)
        votes = decode_level(trained.payloads[level], schema.results, level)
        flat = torch.cat([t.flatten() for t in own]).double()
        flat[votes.positions] -= votes.multiples().double() * 2.0**-40
        assert metrics.residual_norm == pytest.approx(float(flat.norm()), rel=1e-4)
        assert metrics.carried == pytest.approx(1 - float(flat.square().sum()) / whole, rel=1e-4)


@every
def test_zero_gradient_carries_nothing(schema: Schema) -> None:
    _, engine = replica(schema, 1)

    def backward(_: Tensor) -> float:
        for tensor in engine._params.values():
            tensor.grad = torch.zeros_like(tensor)
        return 0.0

    trained = engine.train(SEQUENCES, backward, 0.0, 0.0, True)
    assert trained.measured is not None
    assert [(m.gradient_norm, m.residual_norm, m.carried) for m in trained.measured.values()] == [
        (0.0, 0.0, 0.0)
    ] * 2
