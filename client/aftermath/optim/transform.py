"""The DCT of the encoder, the cut of tensors into blocks, and the choice of coefficients.

A matrix is cut into height x width blocks, which are transformed along both edges. A vector has
blocks of height 1. The matrices of a stack (experts) are cut one by one. fp32 suffices, because
only the sender computes the transform.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from aftermath.optim.blocks import UNUSED, Blocks
from aftermath.optim.dct_basis import basis

ZERO_BELOW = torch.finfo(torch.float32).tiny
"""Coefficients below the smallest normal number count as zero."""


def forward(blocks: Tensor) -> Tensor:
    """Return the DCT-II coefficients [n, h, w] of fp32 blocks [n, h, w]: C = Bh X Bw^T."""
    count, height, width = blocks.shape
    rows = blocks.reshape(-1, width) @ basis(width, blocks.dtype, blocks.device).T
    out = rows.view(count, height, width)
    return out if height == 1 else torch.matmul(basis(height, blocks.dtype, blocks.device), out)


def inverse(coefficients: Tensor) -> Tensor:
    """Return the fp32 blocks [n, h, w] of their coefficients [n, h, w]: X = Bh^T C Bw."""
    count, height, width = coefficients.shape
    rows = coefficients.reshape(-1, width) @ basis(width, coefficients.dtype, coefficients.device)
    out = rows.view(count, height, width)
    return (
        out
        if height == 1
        else torch.matmul(basis(height, coefficients.dtype, coefficients.device).T, out)
    )


def matrices(tensor: Tensor) -> Tensor:
    """Return a tensor as matrices [n, rows, columns], without a copy. A vector is one row."""
    return tensor.flatten(0, -3) if tensor.ndim > 2 else tensor.view(1, -1, tensor.shape[-1])


def cells(tensor: Tensor, blocks: Tensor, cut: Blocks) -> Iterator[tuple[Tensor, Tensor]]:
    """Pair a tensor of the segment's shape (strided or not) with its blocks [n, h, w].

    Yield pairs of views of equal shape [matrices, rows, columns, h, w]: whole blocks first, then
    the inner parts of blocks that extend beyond an end. No pair contains padding, so it never
    reaches a parameter.
    """
    stack = matrices(tensor)
    by_place = _by_place(blocks, cut)
    height, width = by_place.shape[3:]
    for top, rows, tall in _runs(stack.shape[1], height):
        for left, columns, wide in _runs(stack.shape[2], width):
            first_row = top * height
            first_column = left * width
            part = stack[
                :, first_row : first_row + rows * tall, first_column : first_column + columns * wide
            ]
            block_part = by_place[:, top : top + rows, left : left + columns, :tall, :wide]
            yield part.view(-1, rows, tall, columns, wide).transpose(2, 3), block_part


def subtract(tensor: Tensor, step: Tensor, cut: Blocks) -> None:
    """tensor <- tensor - step, with the step as blocks [n, h, w]."""
    for place, change in cells(tensor, step, cut):
        place.sub_(change)


def padding(blocks: Tensor, cut: Blocks) -> Iterator[Tensor]:
    """Yield views of the numbers in a segment's blocks [n, h, w] beyond the ends of its tensor."""
    by_place = _by_place(blocks, cut)
    shape = cut.segment.shape
    height, width = by_place.shape[3:]
    if tall := shape[-2] % height if len(shape) > 1 else 0:
        yield by_place[:, -1, :, tall:]
    if wide := shape[-1] % width:
        yield by_place[:, :, -1, :, wide:]


def _by_place(blocks: Tensor, cut: Blocks) -> Tensor:
    """Return blocks [n, h, w] as [matrices, rows of blocks, columns of blocks, h, w]."""
    return blocks.view(-1, *(1, *cut.grid)[-2:], *blocks.shape[1:])


def _runs(size: int, edge: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first block, blocks, numbers per block) along a dimension: whole blocks first."""
    whole, rest = divmod(size, edge)
    if whole:
        yield 0, whole, edge
    if rest:
        yield whole, 1, rest


def strongest(
    coefficients: Tensor, topk: int, smallest: float = ZERO_BELOW
) -> tuple[Tensor, Tensor]:
    """Return the `topk` largest coefficients by magnitude per row of fp32 [n, block].

    Indices int64 and values are [n, topk]; indices ascend. Values below `smallest` count as zero.
    Zeros are never kept: unused entries come last, with index UNUSED and value 0. Ties go to the
    lower index, so a machine always encodes the same gradients as the same bytes.
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
    """Keep all numbers of each row except zeros. Sort only the few rows that have a zero."""
    indices = torch.arange(coefficients.shape[1], device=coefficients.device).repeat(
        len(coefficients), 1
    )
    values = coefficients.clone()
    zero = magnitudes == 0
    if len(rows := zero.any(1).nonzero().flatten()):
        indices[rows], values[rows] = _in_order(coefficients[rows], indices[rows], zero[rows])
    return indices, values


def _in_order(coefficients: Tensor, indices: Tensor, unused: Tensor) -> tuple[Tensor, Tensor]:
    """Return indices in ascending order, with UNUSED for unused ones, and their values."""
    indices = indices.masked_fill(unused, UNUSED).sort(dim=1).values
    unused = indices == UNUSED
    values = coefficients.gather(1, indices.masked_fill(unused, 0)).masked_fill_(unused, 0)
    return indices, values
