"""The float transform that encoding uses, and the cut of a tensor into blocks.

Decided
- As upstream: a matrix is cut into height x width blocks and each is transformed along both edges; a vector is cut
  into pieces of one edge (height 1 here). A stack of matrices (experts) is one matrix after another. fp32, like the
  optimizer's state: nothing here must be exact, because only the sender computes it.
- A block that reaches over the end of its tensor is padded with zeros. `cells` pairs the numbers that both sides have,
  without a copy; `padding` is the rest, so nothing in it ever reaches a parameter.
- Ties among coefficients go to the lower index, so one machine always sends the same bytes for the same gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from aftermath.optim.basis import basis
from aftermath.optim.blocks import UNUSED, Blocks

ZERO_BELOW = torch.finfo(torch.float32).tiny
"""Below the smallest normal number a coefficient counts as zero."""


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


def matrices(tensor: Tensor) -> Tensor:
    """A tensor as matrices [n, rows, columns], without a copy; a vector is one row."""
    return tensor.flatten(0, -3) if tensor.ndim > 2 else tensor.view(1, -1, tensor.shape[-1])


def cells(tensor: Tensor, blocks: Tensor, cut: Blocks) -> Iterator[tuple[Tensor, Tensor]]:
    """A tensor of the segment's shape (strided or not) and its blocks [n, h, w] in canonical order, number for number.

    Pairs of views of equal shape [matrices, rows, columns, h, w]: the whole blocks, then those that reach over an end.
    """
    stack, by_place = matrices(tensor), _by_place(blocks, cut)
    height, width = by_place.shape[3:]
    for top, rows, tall in _runs(stack.shape[1], height):
        for left, columns, wide in _runs(stack.shape[2], width):
            first_row, first_column = top * height, left * width
            part = stack[:, first_row : first_row + rows * tall, first_column : first_column + columns * wide]
            own = by_place[:, top : top + rows, left : left + columns, :tall, :wide]
            yield part.view(-1, rows, tall, columns, wide).transpose(2, 3), own


def subtract(tensor: Tensor, step: Tensor, cut: Blocks) -> None:
    """tensor <- tensor - step, of which the blocks [n, h, w] are given."""
    for place, change in cells(tensor, step, cut):
        place.sub_(change)


def padding(blocks: Tensor, cut: Blocks) -> Iterator[Tensor]:
    """Views of those numbers in a segment's blocks [n, h, w] that lie over an end of its tensor."""
    by_place, shape = _by_place(blocks, cut), cut.segment.shape
    height, width = by_place.shape[3:]
    if tall := shape[-2] % height if len(shape) > 1 else 0:
        yield by_place[:, -1, :, tall:]
    if wide := shape[-1] % width:
        yield by_place[:, :, -1, :, wide:]


def _by_place(blocks: Tensor, cut: Blocks) -> Tensor:
    """Blocks [n, h, w] as [matrices, rows of blocks, columns of blocks, h, w]."""
    return blocks.view(-1, *(1, *cut.grid)[-2:], *blocks.shape[1:])


def _runs(size: int, edge: int) -> Iterator[tuple[int, int, int]]:
    """(first block, number of blocks, numbers in each) along a dimension: the whole blocks, then one with the rest."""
    whole, rest = divmod(size, edge)
    if whole:
        yield 0, whole, edge
    if rest:
        yield whole, 1, rest


def strongest(coefficients: Tensor, topk: int, smallest: float = ZERO_BELOW) -> tuple[Tensor, Tensor]:
    """The `topk` largest coefficients by magnitude of each row of fp32 [n, block]: indices int64, values, [n, topk].

    Indices ascend within a row. What is below `smallest` counts as zero. Zeros are never kept: their entries come last,
    with index UNUSED and value 0.
    """
    block = coefficients.shape[1]
    magnitudes = coefficients.abs()
    magnitudes.masked_fill_(magnitudes < smallest, 0)
    if topk >= block:
        return _all_but_zeros(coefficients, magnitudes)
    best = magnitudes.topk(topk + 1, dim=1)
    indices = best.indices[:, :topk]
    tied = (best.values[:, topk - 1] == best.values[:, topk]) & (best.values[:, topk] > 0)
    if bool(tied.any()):
        order = magnitudes[tied].sort(dim=1, descending=True, stable=True).indices
        indices[tied] = order[:, :topk]
    return _in_order(coefficients, indices, magnitudes.gather(1, indices) == 0)


def _all_but_zeros(coefficients: Tensor, magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows that are kept whole: hardly any has a zero, and the others need no sorting."""
    indices = torch.arange(coefficients.shape[1], device=coefficients.device).repeat(len(coefficients), 1)
    values, zero = coefficients.clone(), magnitudes == 0
    if len(rows := zero.any(1).nonzero().flatten()):
        indices[rows], values[rows] = _in_order(coefficients[rows], indices[rows], zero[rows])
    return indices, values


def _in_order(coefficients: Tensor, indices: Tensor, unused: Tensor) -> tuple[Tensor, Tensor]:
    """Indices in ascending order, with UNUSED for those that are not used, and their values."""
    indices = indices.masked_fill(unused, UNUSED).sort(dim=1).values
    unused = indices == UNUSED
    values = coefficients.gather(1, indices.masked_fill(unused, 0)).masked_fill_(unused, 0)
    return indices, values
