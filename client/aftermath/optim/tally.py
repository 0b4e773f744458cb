"""Counting votes: whose can be counted, which coefficients somebody kept, the sum of their integers, and how many kept
each.

Decided
- Integers in int64, so the sums do not depend on the order of peers, on threads or on memory layout; and no more peers
  than the proofs of `optim.exact` and `optim.mean` allow for.
- Few votes are sorted, many counted place by place: the same integers either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aftermath.optim.codec import Votes

MAX_PEERS = 256
_DENSE = 2  # with a vote for every so many places counting takes about as long as sorting


def check_votes(votes: Sequence[Votes], level: int, kind: torch.dtype) -> None:
    """Raises ValueError for votes of another level, of values of another kind, or of more than 256 peers."""
    if len(votes) > MAX_PEERS or any(vote.level != level for vote in votes):
        raise ValueError(f"expected votes of at most {MAX_PEERS} peers on level {level}")
    if any(vote.values.dtype != kind for vote in votes):
        raise ValueError("votes of another kind than the result format's")


def tally(positions: Tensor, integers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct positions in ascending order, the sums of their int64 integers, and their counts; all int64."""
    span = int(positions.max()) + 1 if len(positions) else 0
    if len(positions) * _DENSE > span:
        counts = torch.bincount(positions, minlength=span)
        sums = torch.zeros(span, dtype=torch.int64, device=positions.device).index_add_(0, positions, integers)
        found = counts.nonzero().flatten()
        if len(found) == span:
            return found, sums, counts
        return found, sums[found], counts[found]
    found, voter, counts = torch.unique(positions, return_inverse=True, return_counts=True)
    return found, torch.zeros_like(found).index_add_(0, voter, integers), counts
