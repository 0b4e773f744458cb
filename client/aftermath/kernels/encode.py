"""Error feedback and the choice of what is sent, block by block in one pass over memory.

Decided
- Residual, decay, pseudo-gradient, choice and lattice are those of `optim.feedback` and its neighbours, bit by bit but
  for two roundings of torch's: a scaled pseudo-gradient is rounded before it is added, and a DCT adds up in another
  order. Neither is anybody else's.
- Some blocks side by side make the vectors of a DCT long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels import block_topk, dct
from aftermath.kernels.jit import kernel

_VECTORS = 256  # at once
_LINES = 4
_UNUSED = 0xFFFF

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@kernel(
    "void(f4[:,:,::1], i8, i8, f4[::1], i8, i8, i8, i8, f4, f4, b1, f4[:,::1], f4[:,::1], i8[:,::1], f4[:,::1], b1,"
    " i8, i8, i8, i8, i8)"
)
def encode(
    blocks: Floats,
    first: int,
    last: int,
    gradient: Floats,
    stride: int,
    rows: int,
    columns: int,
    across: int,
    decay: float,
    factor: float,
    transformed: bool,
    tall: Floats,
    wide: Floats,
    indices: Numbers,
    values: Floats,
    sent: bool,
    smallest: int,
    bits: int,
    fraction: int,
    least: int,
    most: int,
) -> None:
    """residual <- (residual - what was sent) * decay + factor * gradient, and what is sent of it.

    blocks [n, h, w] are a segment's residual, of which [first, last) are done; the gradient [rows, columns] has
    `stride` from row to row, and `across` blocks in a row of them. tall [h, h] and wide [w, w] are the bases. indices
    and values [n, topk] are what was sent before, if `sent`, and what is sent now.
    """
    _, height, width = blocks.shape
    size, edge = height * width, max(height, width)
    at_once = min(last - first, max(1, _VECTORS // height))
    chosen, magnitudes = np.empty(size, np.float32), np.empty(size, np.uint32)
    some, places = np.empty(2 * size, np.uint32), np.empty(size, np.int64)
    one = np.empty((edge, at_once * edge if transformed else 0), np.float32)
    other, scratch = np.empty_like(one), np.empty_like(one)
    lines, numbers_of = np.empty((_LINES, width), np.float32), np.zeros(_LINES, np.int64)
    for start in range(first, last, at_once):
        count = min(at_once, last - start)
        for number in range(start, start + count):
            block = blocks[number]
            if sent and transformed:
                _take_back(block, tall, wide, indices[number], values[number], lines, numbers_of)
            elif sent:
                _subtract(block.reshape(size), indices[number], values[number])
            top, left = number // across * height, number % across * width
            _add(block, gradient, stride, top, left, rows - top, columns - left, decay, factor)
        if transformed:
            _transform(blocks, start, count, tall, wide, one, other, scratch)
        for number in range(start, start + count):
            numbers = blocks[number].reshape(size)
            if transformed:
                numbers, at = chosen, (number - start) * height
                for x in range(width):
                    for y in range(height):
                        chosen[y * width + x] = other[x, at + y]
            block_topk.top_k(numbers, smallest, magnitudes, some, places, indices[number], values[number])
            if bits:
                block_topk.quantise(values[number], bits, fraction, least, most)


@kernel()
def _add(
    block: Floats,
    gradient: Floats,
    stride: int,
    top: int,
    left: int,
    below: int,
    beside: int,
    decay: float,
    factor: float,
) -> None:
    """block <- block * decay + factor * gradient from (top, left) on, where it has `below` rows and `beside` columns
    more; 0 beyond its ends.
    """
    height, width = block.shape
    tall, wide = min(height, below), min(width, beside)
    for y in range(tall):
        own, first = block[y], (top + y) * stride + left
        added = gradient[first : first + wide]
        for x in range(wide):
            own[x] = own[x] * decay + factor * added[x]
        own[wide:] = 0
    block[tall:] = 0


@kernel()
def _subtract(block: Floats, indices: Numbers, values: Floats) -> None:
    """block [size] <- block - what was sent."""
    for entry in range(len(indices)):
        if indices[entry] == _UNUSED:
            break
        block[indices[entry]] -= values[entry]


@kernel(fused=True)
def _take_back(
    block: Floats, tall: Floats, wide: Floats, indices: Numbers, values: Floats, lines: Floats, rows: Numbers
) -> None:
    """block <- block - the inverse DCT of what was sent, four rows of coefficients at a time; uses up the last two."""
    height, width = block.shape
    entry, topk = 0, len(indices)
    while entry < topk and indices[entry] != _UNUSED:
        lines[:] = 0
        held = -1
        while entry < topk and indices[entry] != _UNUSED:
            row = indices[entry] // width
            if held < 0 or row != rows[held]:
                if held == _LINES - 1:
                    break
                held += 1
                rows[held] = row
            line, value, vector = lines[held], values[entry], wide[indices[entry] - row * width]
            for x in range(width):
                line[x] += value * vector[x]
            entry += 1
        l0, l1, l2, l3 = lines[0], lines[1], lines[2], lines[3]
        for y in range(height):
            own = block[y]
            t0, t1, t2, t3 = tall[rows[0], y], tall[rows[1], y], tall[rows[2], y], tall[rows[3], y]
            for x in range(width):
                own[x] -= t0 * l0[x] + t1 * l1[x] + t2 * l2[x] + t3 * l3[x]


@kernel()
def _transform(
    blocks: Floats,
    first: int,
    count: int,
    tall: Floats,
    wide: Floats,
    one: Floats,
    other: Floats,
    scratch: Floats,
) -> None:
    """The DCT of so many blocks: coefficient (y, x) of block b at other[x, b * height + y]."""
    _, height, width = blocks.shape
    for number in range(count):
        block = blocks[first + number]
        for y in range(height):
            own, line = block[y], one[y, number * width : (number + 1) * width]
            for x in range(width):
                line[x] = own[x]
    if height > 1:
        dct.forward(tall, one, other, scratch, count * width)
    else:
        other[0] = one[0]
    for number in range(count):
        for x in range(width):
            line, at = one[x, number * height : (number + 1) * height], number * width + x
            for y in range(height):
                line[y] = other[y, at]
    dct.forward(wide, one, other, scratch, count * height)
