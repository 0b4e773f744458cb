"""Update the residual and select what to send, block by block in one pass over memory.

Results equal those of `optim.error_feedback` bit by bit, except for two roundings: torch rounds the
scaled pseudo-gradient before the addition, and sums a DCT in another order. Neither affects other
members.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels import block_topk, dct
from aftermath.kernels.jit import kernel

_VECTORS = 256  # vectors of one DCT call: neighbouring blocks together make long loops
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
    """Set residual <- (residual - sent) * decay + factor * gradient, and select what to send.

    Process blocks [first, last) of a segment's residual, blocks [n, h, w]. The gradient
    [rows, columns] has row stride `stride` and `across` blocks per row. tall [h, h] and wide [w, w]
    are the DCT bases. indices and values [n, topk] hold the last result if `sent`, and receive the
    new one.
    """
    _, height, width = blocks.shape
    size = height * width
    edge = max(height, width)
    at_once = min(last - first, max(1, _VECTORS // height))
    chosen = np.empty(size, np.float32)
    magnitudes = np.empty(size, np.uint32)
    some = np.empty(2 * size, np.uint32)
    places = np.empty(size, np.int64)
    one = np.empty((edge, at_once * edge if transformed else 0), np.float32)
    other = np.empty_like(one)
    scratch = np.empty_like(one)
    lines = np.empty((_LINES, width), np.float32)
    numbers_of = np.zeros(_LINES, np.int64)
    for start in range(first, last, at_once):
        count = min(at_once, last - start)
        for number in range(start, start + count):
            block = blocks[number]
            if sent and transformed:
                _take_back(block, tall, wide, indices[number], values[number], lines, numbers_of)
            elif sent:
                subtract_sent(block.reshape(size), indices[number], values[number])
            top = number // across * height
            left = number % across * width
            add_gradient(
                block, gradient, stride, top, left, rows - top, columns - left, decay, factor
            )
        if transformed:
            _transform(blocks, start, count, tall, wide, one, other, scratch)
        for number in range(start, start + count):
            numbers = blocks[number].reshape(size)
            if transformed:
                numbers = chosen
                at = (number - start) * height
                for x in range(width):
                    for y in range(height):
                        chosen[y * width + x] = other[x, at + y]
            block_topk.top_k(
                numbers, smallest, magnitudes, some, places, indices[number], values[number]
            )
            if bits:
                block_topk.quantise(values[number], bits, fraction, least, most)


@kernel()
def add_gradient(
    block: Floats,
    gradient: Floats,
    stride: int,
    top: int,
    left: int,
    below: int,
    right: int,
    decay: float,
    factor: float,
) -> None:
    """Set block <- block * decay + factor * gradient at (top, left), and 0 outside the gradient.

    From (top, left) on, the gradient has `below` rows and `right` columns.
    """
    height, width = block.shape
    tall = min(height, below)
    wide = min(width, right)
    for y in range(tall):
        own = block[y]
        first = (top + y) * stride + left
        added = gradient[first : first + wide]
        for x in range(wide):
            own[x] = own[x] * decay + factor * added[x]
        own[wide:] = 0
    block[tall:] = 0


@kernel()
def subtract_sent(block: Floats, indices: Numbers, values: Floats) -> None:
    """Subtract the sent values from a block [size]."""
    for entry in range(len(indices)):
        if indices[entry] == _UNUSED:
            break
        block[indices[entry]] -= values[entry]


@kernel(fused=True)
def _take_back(
    block: Floats,
    tall: Floats,
    wide: Floats,
    indices: Numbers,
    values: Floats,
    lines: Floats,
    rows: Numbers,
) -> None:
    """Subtract the inverse DCT of the sent values, four rows of coefficients at a time.

    Overwrite `lines` and `rows`.
    """
    height, width = block.shape
    entry = 0
    topk = len(indices)
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
            line = lines[held]
            value = values[entry]
            vector = wide[indices[entry] - row * width]
            for x in range(width):
                line[x] += value * vector[x]
            entry += 1
        l0 = lines[0]
        l1 = lines[1]
        l2 = lines[2]
        l3 = lines[3]
        for y in range(height):
            own = block[y]
            t0 = tall[rows[0], y]
            t1 = tall[rows[1], y]
            t2 = tall[rows[2], y]
            t3 = tall[rows[3], y]
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
    """Transform `count` blocks: coefficient (y, x) of block b is other[x, b * height + y]."""
    _, height, width = blocks.shape
    for number in range(count):
        block = blocks[first + number]
        for y in range(height):
            own = block[y]
            line = one[y, number * width : (number + 1) * width]
            for x in range(width):
                line[x] = own[x]
    if height > 1:
        dct.forward(tall, one, other, scratch, count * width)
    else:
        other[0] = one[0]
    for number in range(count):
        for x in range(width):
            line = one[x, number * height : (number + 1) * height]
            at = number * width + x
            for y in range(height):
                line[y] = other[y, at]
    dct.forward(wide, one, other, scratch, count * height)
