"""The exact mean: equality with fractions, for any order, threads and layout."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aftermath.model.segments import view
from aftermath.optim.engine import Engine
from aftermath.optim.lattice import LARGEST, LEAST, MOST
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import Schema
from aftermath.optim.sparseloco_apply import MeanApply, changes
from aftermath.rules.optimizer import InnerOptimizerName
from aftermath.rules.sparseloco import DivisorName, SparseLoCo
from optim.optim_oracle import RAGGED, joined, toy_inner
from optim.optim_replica import bits, tensors


def oracle(votes: Sequence[Votes], divisor: DivisorName, rate: float) -> dict[int, np.float32]:
    """Return the steps by position, computed in fractions and rounded like IEEE operations."""
    values_by_position = defaultdict(list)
    for vote in votes:
        for position, value in zip(vote.positions.tolist(), vote.multiples().tolist(), strict=True):
            values_by_position[position].append(value)
    means = {}
    for position, values in values_by_position.items():
        by: float = {
            "keepers": len(values),
            "all": len(votes),
            "root": math.sqrt(len(values) * len(votes)),
        }[divisor]
        quotient = float(Fraction(sum(values)) / Fraction(by))  # to the nearest double
        means[position] = np.float32(
            float(Fraction(quotient) * Fraction(rate) * Fraction(2) ** LEAST)
        )
    return means


def votes_of(rows: Sequence[dict[int, int]], level: int = 0) -> list[Votes]:
    return [
        Votes(
            level,
            torch.tensor(list(row), dtype=torch.int64),
            torch.tensor(list(row.values()), dtype=torch.int64),
        )
        for row in rows
    ]


multiple = st.builds(
    lambda sign, size, shift: sign * size << shift,
    st.sampled_from([-1, 1]),
    st.sampled_from([1, 3]),
    st.integers(0, MOST - LEAST),
)
peers = st.lists(st.dictionaries(st.integers(0, 5), multiple), min_size=1, max_size=9)
rates = st.one_of(st.sampled_from([1.0, 0.7, 64.0]), st.floats(1e-6, 64.0))


@given(
    peers,
    st.sampled_from(get_args(DivisorName)),
    rates,
    st.one_of(st.just(LARGEST), st.integers(0, LARGEST)),
)
def test_mean_equals_fractions_rounded_to_fp32(
    rows: list[dict[int, int]], divisor: DivisorName, rate: float, most: int
) -> None:
    votes = votes_of(rows)
    positions, steps = changes(votes, 0, SparseLoCo(divisor=divisor, outer_lr=rate), most)
    rows = [{place: max(-most, min(value, most)) for place, value in row.items()} for row in rows]
    expected = oracle(votes_of(rows), divisor, rate)
    assert positions.tolist() == sorted(expected)
    assert [float(expected[position]) for position in positions.tolist()] == steps.tolist()
    if divisor != "root":
        for position, step in zip(positions.tolist(), steps.tolist(), strict=True):
            values = [row[position] for row in rows if position in row]
            by = len(values) if divisor == "keepers" else len(rows)
            true = Fraction(sum(values), by) * Fraction(rate) * Fraction(2) ** LEAST
            assert abs(Fraction(step) - true) <= abs(true) * Fraction(1, 2**24) * (
                1 + Fraction(1, 2**20)
            )


@pytest.mark.parametrize("divisor", get_args(DivisorName))
def test_mean_of_largest_sums_is_exact(divisor: DivisorName) -> None:
    """256 peers send the largest value, but for one that sends the smallest on one coefficient.
    fp32 cannot hold the sum there.
    """
    rows = [{0: LARGEST, 1: LARGEST} for _ in range(255)] + [{0: LARGEST, 1: 1}]
    votes = votes_of(rows)
    assert sum(row[0] for row in rows) < 2**53
    _, steps = changes(votes, 0, SparseLoCo(divisor=divisor), LARGEST)
    assert steps.tolist() == [float(value) for value in oracle(votes, divisor, 1.0).values()]
    by = 256.0  # also the root of 256 * 256
    assert steps[0].item() == 256 * LARGEST / by * 2.0**LEAST


def random_votes(
    schema: Schema, level: int, count: int, seed: int, density: float = 0.2
) -> list[Votes]:
    generator = torch.Generator().manual_seed(seed)
    total = sum(group.blocks * group.block for group in level_layout(schema.results, level).groups)
    votes = []
    for _ in range(count):
        positions = (torch.rand(total, generator=generator) < density).nonzero().flatten()
        signs, sizes, shifts = (
            torch.randint(0, most, (len(positions),), generator=generator)
            for most in (2, 2, MOST - LEAST + 1)
        )
        values = (2 * signs - 1) * (2 * sizes + 1) << shifts
        votes.append(Votes(level, positions, values))
    return votes


@pytest.mark.parametrize("divisor", get_args(DivisorName))
@pytest.mark.parametrize("sizes", [{}, RAGGED], ids=["whole blocks", "padded blocks"])
def test_mean_apply_equals_the_formula_on_held_levels(
    sizes: dict[str, int], divisor: DivisorName
) -> None:
    schema = toy_inner(divisor=divisor, outer_lr=0.7, **sizes)
    params = tensors(schema, 1, 0)
    before = {name: tensor.clone() for name, tensor in params.items()}
    engine = Engine(schema, 1, params)
    results = {1: random_votes(schema, 1, 3, seed=1), 2: random_votes(schema, 2, 5, seed=2)}
    engine.apply(results, 10.0)  # at this rate no value is limited
    for level, votes in results.items():
        layout = level_layout(schema.results, level)
        expected = oracle(votes, divisor, 0.7)
        for part in layout.parts:
            group = layout.groups[part.group]
            low = group.base + part.first * group.block
            flat = np.array(
                [expected.get(low + i, 0) for i in range(part.blocks.count * group.block)],
                np.float32,
            )
            step = joined(flat.reshape(-1, group.height, group.width), part.blocks)
            old = view(before, part.segment).numpy()
            assert np.array_equal(view(params, part.segment).numpy(), old - step)
    assert bits(params) != bits(before)


def test_mean_apply_ignores_order_threads_and_layout() -> None:
    schema = toy_inner(vocab_size=600, hidden_size=64, chunk=64, divisor="root", outer_lr=0.9)
    votes = random_votes(schema, 2, 9, seed=4)

    def applied(votes: Sequence[Votes], strided: bool = False) -> dict[str, bytes]:
        params = tensors(schema, 2, 0)
        if strided:  # every tensor with gaps in memory
            params = {name: torch.stack([t, t], -1)[..., 0] for name, t in params.items()}
        Engine(schema, 2, params).apply({2: votes}, 0.1)
        return bits({name: tensor.contiguous() for name, tensor in params.items()})

    def gaps(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor], 1)[:, 1]

    expected = applied(votes)
    assert expected != bits(tensors(schema, 2, 0))
    assert applied(votes[::-1]) == expected
    shuffled = [Votes(2, v.positions.flip(0), v.values.flip(0)) for v in votes]
    torch.set_num_threads(2)
    assert applied(votes) == expected
    assert applied(shuffled[3:] + shuffled[:3]) == expected
    assert (
        applied([Votes(2, gaps(v.positions), gaps(v.values)) for v in votes], strided=True)
        == expected
    )


def test_numbers_and_levels_without_votes_keep_their_bits() -> None:
    schema = toy_inner()
    params = tensors(schema, 0, 0)
    odd = torch.tensor([-0.0, 1e-42, 3e38, -1e-30])
    params["model.norm.weight"][:4] = odd
    before = bits(params)
    engine = Engine(schema, 0, params)
    engine.apply({0: [], 1: [], 2: []}, 0.1)
    engine.apply({}, 0.1)
    engine.apply({2: votes_of([{}, {}], 2)}, 0.1)
    assert bits(params) == before
    opposite = votes_of([{0: 5}, {0: -5}], 2)
    engine.apply({2: opposite}, 0.1)
    assert bits(params) == before


def test_apply_with_impossible_votes_changes_nothing() -> None:
    schema = toy_inner()
    params = tensors(schema, 1, 0)
    engine = Engine(schema, 1, params)
    before = bits(params)
    good = votes_of([{0: 1}], 1)
    for results, sentence in (
        ({1: good * 257}, "256 peers"),
        ({1: good, 2: good}, "level 2"),
        ({0: votes_of([{0: 1}])}, r"does not hold levels \[0\]"),
        (
            {1: good, 2: [Votes(2, good[0].positions, torch.ones(1, dtype=torch.int8))]},
            "do not match the result format",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            engine.apply(results, 0.1)
        assert bits(params) == before


def test_vote_changes_only_its_own_parameter() -> None:
    """One vote in the first block of each segment changes one number."""
    schema = toy_inner(**RAGGED)
    params = tensors(schema, 2, 0)
    before = {name: tensor.clone() for name, tensor in params.items()}
    layout = level_layout(schema.results, 2)
    places = [
        layout.groups[part.group].base + part.first * layout.groups[part.group].block
        for part in layout.parts
    ]
    MeanApply(schema.results, 2, params, SparseLoCo()).apply(
        {2: votes_of([dict.fromkeys(places, 1 << -LEAST)], 2)}, 1.0
    )
    for part in layout.parts:
        changes = (view(before, part.segment) - view(params, part.segment)).flatten()
        assert changes[0].item() == pytest.approx(1.0, abs=1e-6)
        assert not changes[1:].any()


@pytest.mark.parametrize(("inner", "most"), [("adamw", 2.0), ("muon", 0.5)])
def test_largest_value_of_one_member_is_capped_by_the_rate(
    inner: InnerOptimizerName, most: float
) -> None:
    """One member sends the largest value of the lattice, alone on its coefficient."""
    schema = toy_inner()
    settings = SparseLoCo(inner_steps=8, inner_optimizer=inner)
    params = tensors(schema, 0, 0)
    before = {name: tensor.clone() for name, tensor in params.items()}
    layout = level_layout(schema.results, 0)
    places = range(sum(group.blocks * group.block for group in layout.groups))
    votes = {0: votes_of([dict.fromkeys(places, LARGEST)])}
    apply = MeanApply(schema.results, 0, params, settings)
    apply.apply(votes, 0.001)
    furthest = max((before[name] - params[name]).abs().max().item() for name in params)
    assert furthest == pytest.approx(most * 8 * 0.001, rel=1e-4)
    bits_before = bits(params)
    apply.apply(votes, 0.0)
    assert bits(params) == bits_before


def test_huge_rate_is_capped_by_the_lattice() -> None:
    """The program accepts any finite rate."""
    schema = toy_inner()
    params = tensors(schema, 2, 0)
    before = {name: tensor.clone() for name, tensor in params.items()}
    MeanApply(schema.results, 2, params, SparseLoCo()).apply(
        {2: votes_of([{0: LARGEST}], 2)}, 1e300
    )
    assert max(
        (before[name] - params[name]).abs().max().item() for name in params
    ) == pytest.approx(3 << MOST)


@pytest.mark.parametrize("rate", [-1.0, float("nan")])
def test_invalid_rate_is_refused_and_changes_nothing(rate: float) -> None:
    schema = toy_inner()
    params = tensors(schema, 2, 0)
    before = bits(params)
    with pytest.raises(ValueError, match="learning rate"):
        MeanApply(schema.results, 2, params, SparseLoCo()).apply({2: votes_of([{0: 1}], 2)}, rate)
    assert bits(params) == before
