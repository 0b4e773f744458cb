"""The float transform that encoding uses, and the cut of a tensor into blocks.

Decided
- As upstream: a matrix is cut into height x width blocks and each is transformed along both edges; a vector is cut
  into pieces of one edge (height 1 here). fp32, like the optimizer's state: nothing here must be exact, because only
  the sender computes it.
- Ties among coefficients go to the lower index, so one machine always sends the same bytes for the same gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aftermath.model.schema import Segment
from aftermath.optim.basis import basis

UNUSED = 0xFFFF  # index of an entry slot without a coefficient
_SMALLEST = torch.finfo(torch.float32).tiny  # below the smallest normal number a coefficient counts as zero


def forward(blocks: Tensor) -> Tensor:
    """DCT-II coefficients [n, h, w] of fp32 blocks [n, h, w]: C = Bh X Bw^T."""
    count, height, width = blocks.shape
    rows = blocks.reshape(-1, width) @ basis(width, blocks.dtype, blocks.device).T
    out = rows.view(count, height, width)
    return out if height == 1 else torch.matmul(basis(height, blocks.dtype, blocks.device), out)


def inverse(coefficients: Tensor) -> Tensor:
    """The fp32 blocks [n, h, w] of their coefficients [n, h, w]: X = Bh^T C Bw."""
    count, height, width = coefficients.shape
    rows = coefficients.reshape(-1, width) @ basis(width, coefficients.dtype, coefficients.device)
    out = rows.view(count, height, width)
    return out if height == 1 else torch.matmul(basis(height, coefficients.dtype, coefficients.device).T, out)


def blocked(tensor: Tensor, segment: Segment) -> Tensor:
    """A tensor of `segment.shape`, strided or not, as a view [*grid, *edges]: its blocks in canonical order."""
    if len(segment.shape) == 1:
        return tensor.view(segment.grid[0], segment.chunk[0])
    (tall, wide), (height, width) = segment.grid, segment.chunk
    return tensor.view(tall, height, wide, width).transpose(1, 2)


def as_blocked(blocks: Tensor, segment: Segment) -> Tensor:
    """Blocks [n, h, w] of a segment in the shape that `blocked` gives: [*grid, *edges]."""
    return blocks.view(*segment.grid, *segment.chunk)


def strongest(coefficients: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The `topk` largest coefficients by magnitude of each row of fp32 [n, block]: indices int64, values, [n, topk].

    Indices ascend within a row. Zeros are never kept: their slots come last, with index UNUSED and value 0.
    """
    block = coefficients.shape[1]
    magnitudes = coefficients.abs()
    magnitudes.masked_fill_(magnitudes < _SMALLEST, 0)
    if topk < block:
        best = magnitudes.topk(topk + 1, dim=1)
        indices = best.indices[:, :topk]
        tied = (best.values[:, topk - 1] == best.values[:, topk]) & (best.values[:, topk] > 0)
        if bool(tied.any()):
            order = magnitudes[tied].sort(dim=1, descending=True, stable=True).indices
            indices[tied] = order[:, :topk]
    else:
        indices = torch.arange(block, device=coefficients.device).expand(len(coefficients), block)
    unused = magnitudes.gather(1, indices) == 0
    indices = indices.masked_fill(unused, UNUSED).sort(dim=1).values
    unused = indices == UNUSED
    values = coefficients.gather(1, indices.masked_fill(unused, 0)).masked_fill_(unused, 0)
    return indices, values


__all__ = ["UNUSED", "as_blocked", "blocked", "forward", "inverse", "strongest"]
