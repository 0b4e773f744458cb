"""The exact aggregate: equality with unbounded integers, for any order, threads and layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aftermath.optim.dct_basis import integer_basis
from aftermath.optim.exact_signs import _inverse, _means, signs
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_format import Values
from optim.optim_oracle import RAGGED, oracle_means, oracle_signs, toy_schema

CPU = torch.device("cpu")


def random_votes(results, level: int, peers: int, seed: int, density: float = 0.1) -> list[Votes]:
    """Return votes of `peers` peers on random coefficients of a level. Many share low positions."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(group.blocks * group.block for group in level_layout(results, level).groups)
    votes = []
    for _ in range(peers):
        chance = density * torch.where(torch.arange(total) % 7 == 0, 5.0, 0.5)
        positions = (torch.rand(total, generator=generator) < chance).nonzero().flatten()
        values = torch.randn(len(positions), generator=generator) * 10.0 ** (seed % 5 - 2)
        votes.append(
            Votes(
                level,
                positions,
                values.sign().to(torch.int8) if results.values is Values.SIGN else values,
            )
        )
    return votes


def equal(left, right) -> bool:
    return all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("one_bit", [True, False])
@pytest.mark.parametrize(
    ("peers", "density"), [(1, 0.02), (2, 0.1), (3, 0.02), (7, 0.1), (16, 0.2), (256, 0.01)]
)
def test_exact_signs_equal_unbounded_integers(peers: int, density: float, one_bit: bool) -> None:
    results = toy_schema(quantize_1bit=one_bit).results
    for level in range(results.levels):
        votes = random_votes(results, level, peers, seed=peers + level, density=density)
        assert equal(signs(votes, results, level, CPU), oracle_signs(votes, results, level))


def test_exact_signs_of_padded_blocks_equal_integers() -> None:
    """Peers may also vote on coefficients of padding."""
    results = toy_schema(**RAGGED).results
    for level in range(results.levels):
        votes = random_votes(results, level, 5, seed=level, density=0.1)
        assert equal(signs(votes, results, level, CPU), oracle_signs(votes, results, level))


@pytest.mark.parametrize(
    ("hidden", "chunk"),
    [
        (64, 64),
        (60, 64),
        pytest.param(44, 43, id="uneven edges"),
        pytest.param(24, 1, id="no transform"),
    ],
)
def test_exact_signs_for_other_edges_equal_integers(hidden: int, chunk: int) -> None:
    results = toy_schema(
        hidden_size=hidden, num_attention_heads=2, intermediate_size=172, tiers=2, chunk=chunk
    ).results
    votes = random_votes(results, 0, 3, seed=chunk, density=0.01)
    assert equal(signs(votes, results, 0, CPU), oracle_signs(votes, results, 0))


@pytest.mark.parametrize(
    ("height", "width"), [(64, 64), (1, 64), (43, 64), (250, 255), (1, 512), (64, 1)]
)
def test_worst_block_stays_exact_in_float64(height: int, width: int) -> None:
    """Every coefficient has votes, with the signs that make the first corner's sum largest.

    Only the first columns are compared, because unbounded integers are slow.
    """
    tall, wide = (np.array(integer_basis(edge), dtype=object) for edge in (height, width))
    corner = np.outer(np.sign(tall[:, 0]), np.sign(wide[:, 0])) * (1 << 26)
    rows = corner.dot(wide[:, :4])
    assert abs(rows).max() <= 1 << 53
    if height > 1:
        half = 1 << 26
        rows = np.vectorize(lambda t: (t + half >> 27) - (t % (1 << 28) == half), otypes=[object])(
            rows
        )
        rows = tall.T.dot(rows)
        assert abs(rows).max() <= 1 << 53
    mean = torch.from_numpy(corner.astype(np.float64)).view(1, height, width)
    assert np.array_equal(_inverse(mean)[0, :, :4].numpy().astype(np.int64).astype(object), rows)


@pytest.mark.parametrize("one_bit", [True, False])
def test_exact_signs_ignore_order_threads_and_layout(one_bit: bool) -> None:
    results = toy_schema(quantize_1bit=one_bit, vocab_size=600, hidden_size=64, chunk=64).results
    votes = random_votes(results, 2, 9, seed=4)
    expected = signs(votes, results, 2, CPU)
    assert any(part.any() for part in expected)
    assert equal(signs(votes[::-1], results, 2, CPU), expected)
    strided = [
        Votes(
            2,
            torch.stack([v.positions, v.positions], 1)[:, 0],
            torch.stack([v.values, v.values], 1)[:, 1],
        )
        for v in votes
    ]
    shuffled = [Votes(2, v.positions.flip(0), v.values.flip(0)) for v in votes]
    torch.set_num_threads(2)
    assert equal(signs(votes, results, 2, CPU), expected)
    assert equal(signs(strided, results, 2, CPU), expected)
    assert equal(signs(shuffled[3:] + shuffled[:3], results, 2, CPU), expected)


def test_block_sums_do_not_depend_on_grouping() -> None:
    """A dense block gives the same integers alone, in a batch of 64, and transposed in memory."""
    generator = torch.Generator().manual_seed(1)
    means = torch.randint(-(1 << 26), (1 << 26) + 1, (64, 64, 64), generator=generator).double()
    together = _inverse(means.clone())
    assert all(torch.equal(_inverse(means[i : i + 1].clone())[0], together[i]) for i in range(64))
    wide, tall = (torch.tensor(integer_basis(64), dtype=torch.int64) for _ in range(2))
    rows = (means[5].long() @ wide).double().mul(2.0**-27).round().long()
    assert torch.equal((tall.T @ rows).double(), together[5])


def test_opposite_votes_and_missing_votes_give_zero() -> None:
    results = toy_schema().results
    (votes,) = random_votes(results, 1, 1, seed=2)
    opposite = Votes(1, votes.positions, -votes.values)
    assert not any(part.any() for part in signs([votes, opposite], results, 1, CPU))
    assert not any(part.any() for part in signs([], results, 1, CPU))


def test_mean_counts_only_peers_that_sent_the_coefficient() -> None:
    """One of 20 peers keeps a coefficient that the other 19 do not send. Its vote weighs 1, not
    1/20.
    """
    results = toy_schema().results
    others = [Votes(0, torch.tensor([1]), torch.tensor([1], dtype=torch.int8)) for _ in range(19)]
    alone = Votes(0, torch.tensor([0]), torch.tensor([-1], dtype=torch.int8))
    both = [
        Votes(0, torch.tensor([1]), torch.tensor([1], dtype=torch.int8)),
        Votes(0, torch.tensor([0]), torch.tensor([-1], dtype=torch.int8)),
    ]
    assert equal(signs([*others, alone], results, 0, CPU), signs(both, results, 0, CPU))


def test_signs_match_the_float_transform_except_near_ties() -> None:
    results = toy_schema(vocab_size=2048, hidden_size=64, chunk=64, topk=8).results
    votes = random_votes(results, 2, 3, seed=9, density=0.002)
    layout = level_layout(results, 2)
    differing = total = 0
    total_sums = torch.zeros(sum(g.blocks * g.block for g in layout.groups), dtype=torch.float64)
    counts = torch.zeros_like(total_sums)
    for vote in votes:
        total_sums.index_add_(0, vote.positions, vote.values.double())
        counts.index_add_(0, vote.positions, torch.ones(len(vote.positions), dtype=torch.float64))
    means = total_sums / counts.clamp(min=1)
    for part, got in zip(layout.parts, signs(votes, results, 2, CPU), strict=True):
        group = layout.groups[part.group]
        low = group.base + part.first * group.block
        dense = means[low : low + part.blocks.count * group.block].view(
            -1, group.height, group.width
        )
        tall, wide = (torch.tensor(integer_basis(e)).double() for e in (group.height, group.width))
        tall, wide = (rows / rows.norm(dim=1, keepdim=True) for rows in (tall, wide))
        sums = tall.T @ (dense @ wide)
        differs = sums.sign() != got
        assert sums[differs].abs().max() < 2**-18 if differs.any() else True
        differing, total = (
            differing + int((differs & (sums.abs() > 1e-12)).sum()),
            total + sums.numel(),
        )
    assert total > 100_000
    assert differing / total < 1e-5


@pytest.mark.parametrize("one_bit", [True, False])
def test_means_are_the_nearest_integers(one_bit: bool) -> None:
    """A difference of one unit rarely changes a sign, so the test compares the means."""
    results = toy_schema(quantize_1bit=one_bit).results
    layout = level_layout(results, 2)
    votes = random_votes(results, 2, 11, seed=6, density=0.15)
    positions, means = _means(votes, layout, CPU)
    expected = {}
    for group in layout.groups:
        for low in range(group.base, group.base + group.blocks * group.block, group.block):
            expected |= {
                low + place: m for place, m in oracle_means(votes, low, low + group.block).items()
            }
    assert len(expected) > 500
    assert dict(zip(positions.tolist(), means.tolist(), strict=True)) == expected


def test_invalid_votes_are_refused() -> None:
    results = toy_schema().results
    vote = Votes(0, torch.tensor([0]), torch.tensor([1], dtype=torch.int8))
    with pytest.raises(ValueError, match="256 peers"):
        signs([vote] * 257, results, 0, CPU)
    with pytest.raises(ValueError, match="level 1"):
        signs([vote], results, 1, CPU)
    with pytest.raises(ValueError, match="do not match the result format"):
        signs([Votes(0, vote.positions, torch.tensor([1.0]))], results, 0, CPU)
