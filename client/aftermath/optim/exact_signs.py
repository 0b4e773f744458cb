"""Compute the sign of every parameter's update, with equal bits on every machine.

Each block takes the mean vote of every coefficient, an inverse DCT in integers, and the sign of the
result. All arithmetic is exact, so rounding errors do not decide signs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from aftermath.optim import packed_sparse
from aftermath.optim.dct_basis import COLUMN_SUM_BITS, basis
from aftermath.optim.layout import Group, LevelLayout, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_format import ResultFormat, Values
from aftermath.optim.vote_count import check_votes, tally

# The computation per block of edges h x w (blocks of vectors have h = 1):
# 1. Per coefficient the mean over the peers that kept it: m = round(2^26 S / c) (halves away from
# zero), with c the number of peers that sent it and S the sum of their votes. Coefficients that
# no peer sent are 0.
# 2. T = round(2^-27 m Bw) (halves to even) with the integer basis Bw of edge w (`optim.dct_basis`).
# 3. Y = Bh^T T (for h = 1: Y = m Bw, without rounding). The answer is sign(Y) in {-1, 0, +1}.
# Edges of 1 have the basis (2^27), so step 2 leaves m unchanged for w = 1.
#
# Why every step is exact in float64 (integers up to 2^53), in any order of summation:
# - |S| <= c <= 256, as each vote is -1 or +1. So |m| <= 2^26 and 2^26 |S| <= 2^34: an exact int64
#   division.
# - An integer basis has columns of absolute sum <= 2^27 (checked when built). So for each entry of
#   m Bw, every product and partial sum, in any order or grouping, with or without fused
#   multiply-add, is an integer of magnitude <= 2^26 * 2^27 = 2^53.
# - 2^-27 times that is exact (a power of two), and rounding gives |T| <= 2^26. The second product
#   has the same bound. The bounds hold for every edge: longer edges have fewer fraction bits (24
#   for 64, 23 for 256).
# So equal votes give equal signs for any number of threads, order of peers, memory layout, BLAS or
# device, given IEEE float64 and products that are not emulated. Devices without float64 use the
# CPU.
#
# The mean is a division, not a product with a reciprocal from a table: only coefficients with votes
# need it, and a unanimous vote gives the same number for every count of peers.
#
# Float votes (without 1-bit) first become integers, per block: with 2^e the largest power of two
# not above the largest magnitude that any peer sent for the block, q = round(2^(25 - e) v) (halves
# to even). So |q| <= 2^26, |S| <= 2^34 and m = round(S / c). A block's scale does not change its
# signs, and a maximum does not depend on order.
#
# At edge 64 the basis has 24 fraction bits and T has 23. So a sign can differ from that of a
# float64 transform only if the sum is within rounding of zero: `benchmarks/distro.py` finds 3 to 5
# such signs in 20 million, all of sums below 1e-7 (a vote is 1).
MEAN_BITS = 26
_BATCH = {"cpu": 1 << 18, "cuda": 1 << 23}
"""Coefficients per transform. On a CPU, 2 MiB of float64 fit the cache; a GPU needs larger batches.
"""
_FRACTION_BITS = 52  # float64
_EXPONENT_BIAS = 1023  # float64


def signs(
    votes: Sequence[Votes], results: ResultFormat, level: int, device: torch.device
) -> list[Tensor]:
    """Return the signs of all peers' aggregate: int8 [blocks, h, w] on `device`, per segment.

    Segments are in canonical order. Raises ValueError for votes of another level, of mixed kinds,
    or of more than 256 peers. Without votes the signs are zero.
    """
    groups = group_signs(votes, results, level, device)
    return [part.of(groups[part.group]) for part in level_layout(results, level).parts]


def group_signs(
    votes: Sequence[Votes], results: ResultFormat, level: int, device: torch.device
) -> list[Tensor]:
    """Return the signs of the mean of all votes, by group: int8 [blocks, h, w]."""
    check_votes(votes, level, torch.int8 if results.values is Values.SIGN else torch.float32)
    layout = level_layout(results, level)
    worker = torch.device("cpu") if device.type == "mps" else device
    packed_votes = packed_sparse.votes_on({level: votes}, worker)
    if votes and packed_votes:
        return _packed_signs(
            packed_votes[level], packed_sparse.sparse_level(results, level, worker)
        )
    positions, means = _means(votes, layout, worker)
    return [_group_signs(group, positions, means).to(device) for group in layout.groups]


def _means(
    votes: Sequence[Votes], layout: LevelLayout, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return positions (ascending, distinct) with votes, and their means m, both int64."""
    if not votes:
        return torch.empty(0, dtype=torch.int64, device=device), torch.empty(
            0, dtype=torch.int64, device=device
        )
    all_positions = torch.cat([vote.positions for vote in votes]).to(device)
    values = torch.cat([vote.values for vote in votes]).to(device)
    integers = (
        _fixed_point(all_positions, values, layout)
        if values.is_floating_point()
        else values.long() << MEAN_BITS
    )
    positions, sums, counts = tally(all_positions, integers)
    magnitude = (2 * sums.abs() + counts) // (2 * counts)
    return positions, magnitude * sums.sign()


def _fixed_point(positions: Tensor, values: Tensor, layout: LevelLayout) -> Tensor:
    """Return float votes as integers. The power of two is made from its bits, exact everywhere."""
    bits = values.double().view(torch.int64)
    exponents = ((bits >> _FRACTION_BITS) & 0x7FF) - _EXPONENT_BIAS
    blocks = torch.empty_like(positions)
    first = 0
    for group in layout.groups:
        inside = (positions >= group.base) & (positions < group.base + group.blocks * group.block)
        blocks = torch.where(inside, first + (positions - group.base) // group.block, blocks)
        first += group.blocks
    largest = torch.full((first,), -_EXPONENT_BIAS, dtype=torch.int64, device=positions.device)
    largest.scatter_reduce_(0, blocks, exponents, "amax")
    power = ((MEAN_BITS - 1 - largest[blocks] + _EXPONENT_BIAS) << _FRACTION_BITS).view(
        torch.float64
    )
    return (values.double() * power).round().long()


def _group_signs(group: Group, positions: Tensor, means: Tensor) -> Tensor:
    """Return the signs int8 [blocks, h, w] of one group's blocks."""
    out = torch.empty(
        group.blocks, group.height, group.width, dtype=torch.int8, device=positions.device
    )
    device = positions.device
    step = max(1, _BATCH.get(device.type, _BATCH["cpu"]) // group.block)
    scratch = torch.empty(
        min(step, group.blocks) * group.block, dtype=torch.float64, device=positions.device
    )
    for first, low, high in _batches(group, positions, step):
        part = out[first : first + step]
        coefficients = scratch[: part.numel()].zero_()
        if low < high:
            coefficients[positions[low:high] - (group.base + first * group.block)] = means[
                low:high
            ].double()
        part.copy_(_inverse(coefficients.view(part.shape)).sign_())
    return out


def _packed_signs(
    votes: Sequence[packed_sparse.PackedEntries], of: packed_sparse.SparseLevel
) -> list[Tensor]:
    """Return the signs of each group's blocks from votes that are packed on a GPU."""
    device = votes[0].payload.device
    out = [
        torch.empty(group.blocks, group.height, group.width, dtype=torch.int8, device=device)
        for group in of.layout.groups
    ]
    offsets = [0] * len(out)
    for number, means in packed_sparse.sign_means(votes, of, MEAN_BITS):
        first = offsets[number]
        out[number][first : first + len(means)] = _inverse(means).sign_()
        offsets[number] += len(means)
    return out


def _batches(group: Group, positions: Tensor, step: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first block, start, stop of its votes) for every batch of `step` blocks."""
    firsts = list(range(0, group.blocks, step))
    edges = [group.base + first * group.block for first in (*firsts, group.blocks)]
    cuts = torch.searchsorted(positions, torch.tensor(edges, device=positions.device)).tolist()
    return zip(firsts, cuts, cuts[1:], strict=False)


def _inverse(means: Tensor) -> Tensor:
    """Return the integers Y [n, h, w] (as float64) of the means [n, h, w]."""
    count, height, width = means.shape
    rows = (means.view(-1, width) @ basis(width, torch.float64, means.device)).view(
        count, height, width
    )
    if height == 1:
        return rows
    rows.mul_(2.0**-COLUMN_SUM_BITS).round_()
    return torch.matmul(basis(height, torch.float64, means.device).T, rows)
