"""Count dense votes (`optim.result_format`) like `optim.sparseloco_apply`, on any device.

Counting is exact: a vote is a digit times a power of two, and float64 holds every sum of at most
256 of them (`optim.lattice`). Everything else is a comparison, or one IEEE operation on two
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aftermath.optim.layout import LevelLayout
from aftermath.optim.level_votes import DenseVotes, Votes

_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 23}
"""Numbers per batch: what fits a core's cache, or keeps a GPU busy. MPS has no float64 and uses the
CPU.
"""


def votes_of(results: Mapping[int, Sequence[Votes]]) -> dict[int, list[DenseVotes]]:
    """Return the votes of the levels whose votes are all dense."""
    votes_by_level = {
        level: [vote for vote in votes if isinstance(vote, DenseVotes)]
        for level, votes in results.items()
    }
    return {
        level: dense for level, dense in votes_by_level.items() if len(dense) == len(results[level])
    }


def means(
    votes: Sequence[DenseVotes],
    layout: LevelLayout,
    most: int,
    divisors: Sequence[float],
    rate: float,
    device: torch.device,
) -> list[Tensor]:
    """Return the update to subtract, by group: fp32 blocks [n, h, w] on `device`.

    Numbers without votes are zero. `divisors[n]` divides a sum of n votes. Each vote is clipped to
    `most` multiples of the smallest lattice value, and `rate` scales these multiples.
    """
    place = device if device.type in _AT_ONCE else torch.device("cpu")
    # numbers without votes stay 0
    by = torch.tensor([1.0, *divisors[1:]], dtype=torch.float64, device=place)
    alike = len(set(divisors[1:])) == 1
    means_by_group = []
    for number, group in enumerate(layout.groups):
        steps = torch.empty(group.blocks, group.block, device=place)
        batch = max(1, _AT_ONCE[place.type] // group.block)
        for first in range(0, group.blocks, batch):
            rows = slice(first, first + batch)
            sums = torch.zeros(steps[rows].shape, dtype=torch.float64, device=place)
            counts = torch.zeros(() if alike else sums.shape, dtype=torch.int16, device=place)
            for vote in votes:
                vote_digits = vote.digits[number][rows].to(place)
                sums.add_(
                    (vote_digits * _powers(vote.group_shifts[number][rows].to(place))).clamp_(
                        -most, most
                    )
                )
                if not alike:
                    counts.add_(vote_digits != 0)
            sums.div_(by[1] if alike else by[counts.int()])
            steps[rows] = sums.mul_(rate)
        means_by_group.append(steps.view(group.blocks, group.height, group.width).to(device))
    return means_by_group


def _powers(exponents: Tensor) -> Tensor:
    """Return 2^exponent in float64, made from its bits."""
    return (exponents.long() + 1023 << 52).view(torch.float64)
