"""Count votes: which coefficients have votes, the sum of each, and the number of voters.

Votes are int64 integers, so sums do not depend on the order of peers, threads or memory layout. The
proofs in `optim.exact_signs` and `optim.sparseloco_apply` limit the number of peers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aftermath.optim.level_votes import Votes

MAX_PEERS = 256
_DENSE = 2  # with one vote per 2 positions, counting takes about as long as sorting


def check_votes(votes: Sequence[Votes], level: int, kind: torch.dtype) -> None:
    """Raise ValueError for votes of another level or kind, or of more than 256 peers."""
    if len(votes) > MAX_PEERS or any(vote.level != level for vote in votes):
        raise ValueError(f"expected votes of at most {MAX_PEERS} peers on level {level}")
    if any(vote.kind != kind for vote in votes):
        raise ValueError("the votes do not match the result format")


def tally_multiples(votes: Sequence[Votes], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count lattice votes of at least one peer like `tally`, each vote clipped to `most`.

    The counting runs on the device of the first peer's votes.
    """
    device = votes[0].positions.device
    span = 1 + max(int(vote.positions.max()) if len(vote.positions) else -1 for vote in votes)
    if sum(len(vote.positions) for vote in votes) * _DENSE <= span:
        whole = torch.cat([vote.multiples().to(device) for vote in votes]).clamp_(-most, most)
        return tally(torch.cat([vote.positions.to(device) for vote in votes]), whole)
    # Count peer by peer, so that the extra memory does not grow with the number of peers.
    sums, counts = added_up(votes, span, most, device)
    places = counts.nonzero().flatten()
    if len(places) == span:
        return places, sums, counts
    return places, sums[places], counts[places]


def added_up(
    votes: Sequence[Votes], span: int, most: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return, per position below `span`, the sum (int64) and number (int16) of lattice votes."""
    sums = torch.zeros(span, dtype=torch.int64, device=device)
    counts = torch.zeros(span, dtype=torch.int16, device=device)
    one = torch.ones((), dtype=torch.int16, device=device)
    for vote in votes:
        positions = vote.positions.to(device)
        sums.index_add_(0, positions, vote.multiples().to(device).clamp_(-most, most))
        counts.index_add_(0, positions, one.expand(len(positions)))
    return sums, counts


def tally(positions: Tensor, integers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return distinct ascending positions, the sum at each, and the count, all int64."""
    span = int(positions.max()) + 1 if len(positions) else 0
    if len(positions) * _DENSE > span:
        counts = torch.bincount(positions, minlength=span)
        sums = torch.zeros(span, dtype=torch.int64, device=positions.device).index_add_(
            0, positions, integers
        )
        places = counts.nonzero().flatten()
        if len(places) == span:
            return places, sums, counts
        return places, sums[places], counts[places]
    places, voter, counts = torch.unique(positions, return_inverse=True, return_counts=True)
    return places, torch.zeros_like(places).index_add_(0, voter, integers), counts
