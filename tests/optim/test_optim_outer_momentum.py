"""Test that the outer momentum equals Python integers, on all tiers and devices, and its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from aftermath.base.errors import SchemaError
from aftermath.model.levels import LARGEST_MOMENTUM, MOMENTUM, MomentumSegment
from aftermath.model.segments import (
    SegmentError,
    level_hash,
    segment_bytes,
    view,
    write_segment,
)
from aftermath.optim.engine import Engine
from aftermath.optim.integer_polar import exact_polar
from aftermath.optim.lattice import LARGEST, LEAST
from aftermath.optim.layout import Part, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.muon import hidden_matrices
from aftermath.optim.outer_momentum import FRACTION, factor_of
from aftermath.optim.schema import Schema
from aftermath.optim.sparseloco_apply import changes, most_of
from aftermath.rules.sparseloco import SparseLoCo
from optim.optim_oracle import RAGGED, joined, toy_inner
from optim.optim_replica import bits, encode, gradients, tensors
from optim.test_sparseloco_apply import random_votes
from replica.simulated_gpu import gpu_at_hand

LR = 0.01
UNIT = Fraction(2) ** LEAST


def _schema(**changed: object) -> Schema:
    return toy_inner(**{"outer_momentum": 0.6, "outer_lr": 0.7} | changed)


def _mean(schema: Schema, part: Part, votes: Sequence[Votes], level: int, lr: float) -> np.ndarray:
    """Return the mean of a segment in multiples of the unit, as Python integers."""
    settings = schema.optimizer
    assert isinstance(settings, SparseLoCo)
    plain = SparseLoCo(inner_steps=settings.inner_steps, divisor=settings.divisor)
    positions, steps = changes(votes, level, plain, most_of(settings, lr))
    layout = level_layout(schema.results, level)
    group = layout.groups[part.group]
    low = group.base + part.first * group.block
    flat = np.zeros(part.blocks.count * group.block, object)
    for position, step in zip(positions.tolist(), steps.tolist(), strict=True):
        if low <= position < low + len(flat):
            flat[position - low] = round(Fraction(step) / UNIT)  # halves to even
    return joined(flat.reshape(-1, group.height, group.width), part.blocks)


def _shrunk(value: int, factor: int) -> int:
    return int(math.copysign(abs(value) * factor // FRACTION, value))


def _steps(
    schema: Schema, momentum: dict[str, np.ndarray], part: Part, mean: np.ndarray
) -> np.ndarray:
    """Update a segment's momentum in Python integers, and return the steps in fp32."""
    settings = schema.optimizer
    assert isinstance(settings, SparseLoCo)
    factor = factor_of(settings)
    segment = part.segment
    tensor = momentum[segment.name]
    cut = [slice(None)] * tensor.ndim
    if segment.dim is not None:
        cut[segment.dim] = slice(segment.start, segment.stop)
    old = tensor[tuple(cut)]
    new = np.empty_like(old)
    steps = np.empty(old.shape, np.float32)
    for place in np.ndindex(old.shape):
        new[place] = _shrunk(old[place], factor) + mean[place]
        total = mean[place] + _shrunk(new[place], factor)
        steps[place] = np.float32(float(Fraction(total) * Fraction(settings.outer_lr * 2.0**LEAST)))
    tensor[tuple(cut)] = new
    return steps


@pytest.mark.parametrize("divisor", ["keepers", "root"])
@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
def test_momentum_apply_equals_python_integers(sizes: dict[str, int], divisor: str) -> None:
    schema = _schema(divisor=divisor, **sizes)
    params = tensors(schema, 1, 0)
    expected = {name: tensor.clone() for name, tensor in params.items()}
    engine = Engine(schema, 1, params)
    momentum = {name: np.zeros(t.shape, object) for name, t in params.items()}
    for number in range(3):
        results = {
            level: random_votes(schema, level, 3, seed=10 * number + level) for level in (1, 2)
        }
        if number == 1:
            results[1] = []  # this level does not change
        engine.apply(results, LR)
        for level, votes in results.items():
            for part in level_layout(schema.results, level).parts if votes else ():
                mean = _mean(schema, part, votes, level, LR)
                steps = _steps(schema, momentum, part, mean)
                tensor = view(expected, part.segment)
                tensor.copy_(torch.from_numpy(tensor.numpy() - steps))
    assert bits(params) == bits(expected)
    for name, whole in momentum.items():
        assert engine.momentum[MOMENTUM + name].tolist() == whole.tolist()


def test_momentum_of_polar_step_equals_the_formula() -> None:
    schema = _schema(orthogonal_lr=3.0, divisor="all")
    params = tensors(schema, 1, 0)
    expected = {name: tensor.clone() for name, tensor in params.items()}
    engine = Engine(schema, 1, params)
    momentum = {name: np.zeros(t.shape, object) for name, t in params.items()}
    for number in range(2):
        votes = random_votes(schema, 1, 3, seed=number)
        engine.apply({1: votes}, LR)
        for part in level_layout(schema.results, 1).parts:
            mean = _mean(schema, part, votes, 1, LR)
            steps = torch.from_numpy(_steps(schema, momentum, part, mean))
            tensor = view(expected, part.segment)
            assert part.segment.name in hidden_matrices(params)
            rows, columns = tensor.shape
            tensor -= exact_polar(steps) * (LR * 3.0 * math.sqrt(max(1, rows / columns)))
    assert bits(params) == bits(expected)


def test_momentum_ignores_order_threads_layout_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = _schema(hidden_size=64, chunk=64, topk=300)
    rounds = [random_votes(schema, 2, 5, seed=seed) for seed in (4, 5, 6)]

    def applied(reverse: bool = False, strided: bool = False) -> dict[str, bytes]:
        params = tensors(schema, 2, 0)
        if strided:  # every tensor with gaps in memory
            params = {name: torch.stack([t, t], -1)[..., 0] for name, t in params.items()}
        engine = Engine(schema, 2, params)
        for votes in rounds:
            engine.apply({2: votes[::-1] if reverse else votes}, 0.1)
        return bits({n: t.contiguous() for n, t in (params | engine.momentum).items()})

    expected = applied()
    torch.set_num_threads(2)
    assert applied() == applied(reverse=True) == applied(strided=True) == expected
    monkeypatch.setattr("aftermath.optim.outer_momentum._AT_ONCE", {"cpu": 1})
    assert applied() == expected
    monkeypatch.setattr("aftermath.optim.sparseloco_apply.usable", lambda _: False)
    with gpu_at_hand() as gpu:
        params = {name: tensor.to(gpu) for name, tensor in tensors(schema, 2, 0).items()}
        engine = Engine(schema, 2, params)
        for votes in rounds:
            engine.apply({2: votes}, 0.1)
        assert {tensor.device for tensor in engine.momentum.values()} == {gpu}
        there = {name: tensor.cpu() for name, tensor in (params | engine.momentum).items()}
    assert bits(there) == expected


def test_momentum_gives_all_tiers_equal_level_hashes() -> None:
    schema = _schema()
    engines = [Engine(schema, tier, tensors(schema, tier, 0)) for tier in range(3)]
    hashes: list[set[bytes]] = [set(), set(), set()]
    for number in range(3):
        votes = {level: random_votes(schema, level, 4, 10 * number + level) for level in range(3)}
        for tier, engine in enumerate(engines):
            engine.apply({level: votes[level] for level in range(tier, 3)}, LR)
    for tier, engine in enumerate(engines):
        for level in range(tier, 3):
            shared = dict(engine._params) | engine.momentum
            hashes[level].add(level_hash(shared, schema.shared, level))
    assert [len(one) for one in hashes] == [1, 1, 1]


def test_changed_momentum_changes_only_its_level_hash() -> None:
    schema = _schema()
    engine = Engine(schema, 0, tensors(schema, 0, 0))
    shared = dict(engine._params) | engine.momentum
    before = [level_hash(shared, schema.shared, level) for level in range(3)]
    own = next(s for s in schema.shared.of_level(1) if isinstance(s, MomentumSegment))
    view(shared, own)[0, 0] = 1
    after = [level_hash(shared, schema.shared, level) for level in range(3)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_look_ahead_leaves_momentum_unchanged() -> None:
    schema = _schema()
    engine = Engine(schema, 0, tensors(schema, 0, 0))
    engine.apply({0: random_votes(schema, 0, 2, 1)}, LR)
    before = bits(engine.momentum)
    encode(engine, gradients(schema, 0, 0), LR)
    engine.train(
        torch.zeros(1, 2, dtype=torch.int64),
        lambda _: _with_gradients(engine, gradients(schema, 0, 1)),
        LR,
        LR,
        travelling=True,
    )
    assert bits(engine.momentum) == before


def _with_gradients(engine: Engine, grads: dict[str, Tensor]) -> float:
    for name, gradient in grads.items():
        engine._params[name].grad = gradient.clone()
    return 0.0


def test_momentum_stays_within_its_bound_for_largest_votes() -> None:
    """Use the largest factor and the largest momentum that a replica accepts, with both signs."""
    schema = _schema(outer_momentum=0.99, outer_lr=64.0, inner_steps=1024)
    engine = Engine(schema, 2, tensors(schema, 2, 0))
    total = sum(group.blocks * group.block for group in level_layout(schema.results, 2).groups)
    signs = torch.ones(total, dtype=torch.int64)
    signs[::2] = -1
    votes = [Votes(2, torch.arange(total), signs * LARGEST) for _ in range(3)]
    for tensor in engine.momentum.values():
        tensor.fill_(LARGEST_MOMENTUM)
    for _ in range(3):
        engine.apply({2: votes}, 1e6)
        most = max(int(tensor.max()) for tensor in engine.momentum.values())
        least = min(int(tensor.min()) for tensor in engine.momentum.values())
        assert least > -LARGEST_MOMENTUM
        assert most < LARGEST_MOMENTUM
    assert factor_of(schema.optimizer) * LARGEST_MOMENTUM + LARGEST * FRACTION < (  # type: ignore[arg-type]
        FRACTION * LARGEST_MOMENTUM
    )
    assert all(bool(torch.isfinite(tensor).all()) for tensor in engine._params.values())


def test_momentum_of_unsent_numbers_falls_to_zero() -> None:
    schema = _schema(outer_momentum=0.99)
    engine = Engine(schema, 2, tensors(schema, 2, 0))
    for tensor in engine.momentum.values():
        tensor.fill_(-(1 << 20))
    nothing = [Votes(2, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))]
    for _ in range(2000):
        engine.apply({2: nothing}, LR)
    assert not any(bool(tensor.any()) for tensor in engine.momentum.values())


def test_invalid_votes_leave_momentum_unchanged() -> None:
    schema = _schema()
    engine = Engine(schema, 1, tensors(schema, 1, 0))
    engine.apply({1: random_votes(schema, 1, 2, 1)}, LR)
    before = bits(dict(engine._params) | engine.momentum)
    with pytest.raises(ValueError, match="of at most 256 peers"):
        engine.apply({1: random_votes(schema, 1, 2, 1), 2: random_votes(schema, 1, 2, 1)}, LR)
    assert bits(dict(engine._params) | engine.momentum) == before


def test_momentum_bytes_that_do_not_fit_are_refused() -> None:
    schema = _schema()
    engine = Engine(schema, 0, tensors(schema, 0, 0))
    own = next(s for s in schema.shared.of_level(0) if isinstance(s, MomentumSegment))
    values = np.full(own.numel, LARGEST_MOMENTUM, np.int64)
    write_segment(engine.momentum, own, values.tobytes())
    assert segment_bytes(engine.momentum, own) == values.tobytes()
    assert len(values.tobytes()) == own.size
    for bad in (LARGEST_MOMENTUM + 1, -LARGEST_MOMENTUM - 1, -(1 << 63), (1 << 63) - 1):
        values[-1] = bad
        with pytest.raises(SegmentError, match="a value is too large"):
            write_segment(engine.momentum, own, values.tobytes())
    with pytest.raises(SegmentError, match=f"takes {own.size} bytes"):
        write_segment(engine.momentum, own, values.tobytes()[:-4])
    assert int(view(engine.momentum, own).min()) == LARGEST_MOMENTUM


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan, math.inf])
def test_momentum_out_of_range_is_refused(momentum: float) -> None:
    with pytest.raises(SchemaError, match=r"outer_momentum must be from 0 to 0\.99"):
        SparseLoCo(outer_momentum=momentum)


def test_schema_without_momentum_has_no_trace_of_it() -> None:
    schema = toy_inner()
    assert schema.shared is schema.state
    assert b"outer_momentum" not in schema.to_json()
    with_momentum = _schema()
    assert b'"outer_momentum":"0.6"' in with_momentum.to_json()
    for one in (schema, with_momentum):
        read = Schema.from_json(one.to_json())
        assert read.optimizer == one.optimizer
        assert read.to_json() == one.to_json()
