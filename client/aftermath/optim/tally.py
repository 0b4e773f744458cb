"""Counting votes: which coefficients somebody kept, the sum of their integers, and how many kept each.

Decided: integers in int64, so the sums do not depend on the order of peers, on threads or on memory layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_PEERS = 256


def tally(positions: Tensor, integers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct positions in ascending order, the sums of their int64 integers, and their counts; all int64."""
    found, voter, counts = torch.unique(positions, return_inverse=True, return_counts=True)
    return found, torch.zeros_like(found).index_add_(0, voter, integers), counts
