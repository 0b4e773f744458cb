"""Muon at the apply: its formula and step size, for any order, threads and layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from aftermath.model.segments import view
from aftermath.optim.engine import Engine
from aftermath.optim.integer_polar import exact_polar
from aftermath.optim.layout import Part, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.muon import hidden_matrices
from aftermath.optim.schema import Schema, build_schema
from aftermath.optim.sparseloco_apply import changes, most_of
from aftermath.rules.sparseloco import SparseLoCo
from optim.optim_oracle import RAGGED, joined, toy_inner
from optim.optim_replica import bits, tensors
from optim.test_sparseloco_apply import random_votes
from replica.whole_round import MODELS

LR = 0.01
ORTHOGONAL = 3.0


def _schema(**changed: object) -> Schema:
    return toy_inner(orthogonal_lr=ORTHOGONAL, divisor="all", **changed)


def _mean(schema: Schema, part: Part, votes: Sequence[Votes], level: int) -> Tensor:
    """Return the step of `optim.sparseloco_apply` for a segment."""
    assert isinstance(schema.optimizer, SparseLoCo)
    positions, steps = changes(votes, level, schema.optimizer, most_of(schema.optimizer, LR))
    layout = level_layout(schema.results, level)
    flat = torch.zeros(sum(group.blocks * group.block for group in layout.groups))
    flat[positions] = steps
    group = layout.groups[part.group]
    low = group.base + part.first * group.block
    blocks = flat[low : low + part.blocks.count * group.block].view(-1, group.height, group.width)
    return torch.from_numpy(joined(blocks.numpy(), part.blocks))


@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
def test_outer_muon_equals_the_formula_on_held_levels(sizes: dict[str, int]) -> None:
    schema = _schema(**sizes)
    params = tensors(schema, 1, 0)
    expected = {name: tensor.clone() for name, tensor in params.items()}
    results = {level: random_votes(schema, level, 3, seed=level) for level in (1, 2)}
    Engine(schema, 1, params).apply(results, LR)
    hidden = []
    for level, votes in results.items():
        for part in level_layout(schema.results, level).parts:
            mean = _mean(schema, part, votes, level)
            tensor = view(expected, part.segment)
            if part.segment.name not in hidden_matrices(params):
                tensor -= mean
                continue
            hidden.append((level, part.segment.name))
            rows, columns = mean.shape
            tensor -= exact_polar(mean) * (LR * ORTHOGONAL * math.sqrt(max(1, rows / columns)))
    assert bits(params) == bits(expected)
    assert len(hidden) == 3 + 7  # the FFN's parts in level 1, with those of attention in level 2


def test_stacked_matrices_are_orthogonalised_separately() -> None:
    pytest.importorskip("transformers")
    settings = SparseLoCo(
        inner_steps=1, topk=4, topk_embeddings=4, chunk=8, orthogonal_lr=ORTHOGONAL, divisor="all"
    )
    schema = build_schema(MODELS["auto-experts"], 1, settings)
    shapes = {segment.name: segment.shape for segment in schema.state.segments}
    params = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(1))
        for name, shape in shapes.items()
    }
    before = {name: tensor.clone() for name, tensor in params.items()}
    votes = random_votes(schema, 0, 3, seed=2)
    Engine(schema, 0, params).apply({0: votes}, LR)
    parts = {part.segment.name: part for part in level_layout(schema.results, 0).parts}
    for name in ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"):
        assert parts[name].blocks.edges[0] == 1
        _, rows, columns = shapes[name]
        rate = LR * ORTHOGONAL * math.sqrt(max(1, rows / columns))
        for number, mean in enumerate(_mean(schema, parts[name], votes, 0)):
            assert mean.any()
            expected = before[name][number] - exact_polar(mean) * rate
            assert torch.equal(params[name][number], expected)


def test_outer_muon_step_size_ignores_the_sent_values() -> None:
    """Members send the largest values, all in one direction. The rate alone sets the step size."""
    schema = _schema()
    params = tensors(schema, 2, 0)
    before = {name: tensor.clone() for name, tensor in params.items()}
    layout = level_layout(schema.results, 2)
    count = sum(group.blocks * group.block for group in layout.groups)
    for value in (1, 3 << 43):
        votes = [Votes(2, torch.arange(count), torch.full((count,), value))]
        Engine(schema, 2, params).apply({2: votes}, LR)
        for name in hidden_matrices(params):
            rows, columns = params[name].shape
            change_norm = torch.linalg.matrix_norm(before[name].double() - params[name], 2)
            assert 0.8 < change_norm / (LR * ORTHOGONAL * max(1, rows / columns) ** 0.5) < 1.2, name
        before = {name: tensor.clone() for name, tensor in params.items()}


def test_outer_muon_ignores_order_threads_and_layout() -> None:
    schema = _schema(hidden_size=64, chunk=64)
    rounds = [random_votes(schema, 2, 5, seed=seed) for seed in (4, 5)]

    def applied(reverse: bool = False, strided: bool = False) -> dict[str, bytes]:
        params = tensors(schema, 2, 0)
        if strided:  # every tensor with gaps in memory
            params = {name: torch.stack([t, t], -1)[..., 0] for name, t in params.items()}
        engine = Engine(schema, 2, params)
        for votes in rounds:
            engine.apply({2: votes[::-1] if reverse else votes}, 0.1)
        return bits({name: tensor.contiguous() for name, tensor in params.items()})

    expected = applied()
    assert expected != bits(tensors(schema, 2, 0))
    torch.set_num_threads(2)
    assert applied() == applied(reverse=True) == applied(strided=True) == expected


def test_outer_muon_gives_all_tiers_equal_bits() -> None:
    schema = _schema()
    replicas = [tensors(schema, tier, 0) for tier in range(3)]
    engines = [Engine(schema, tier, params) for tier, params in enumerate(replicas)]
    for seed in range(3):
        votes = {
            level: random_votes(schema, level, 4, seed=10 * seed + level) for level in range(3)
        }
        for tier, engine in enumerate(engines):
            engine.apply({level: votes[level] for level in range(tier, 3)}, LR)
    for segment in (segment for level in range(3) for segment in schema.state.of_level(level)):
        views = [view(params, segment) for params in replicas[: segment.level + 1]]
        assert all(torch.equal(views[0], other) for other in views)


def test_level_without_votes_is_unchanged() -> None:
    schema = _schema()
    params = tensors(schema, 1, 0)
    before = bits(params)
    Engine(schema, 1, params).apply({1: [], 2: []}, LR)
    Engine(schema, 1, params).apply({}, LR)
    assert bits(params) == before


def test_invalid_votes_are_refused_and_change_nothing() -> None:
    schema = _schema()
    params = tensors(schema, 1, 0)
    engine = Engine(schema, 1, params)
    before = bits(params)
    good = {level: random_votes(schema, level, 2, seed=level) for level in (1, 2)}
    for bad in ({**good, 2: good[2] * 129}, {**good, 2: good[1]}):
        with pytest.raises(ValueError, match="256 peers on level 2"):
            engine.apply(bad, LR)
        assert bits(params) == before
