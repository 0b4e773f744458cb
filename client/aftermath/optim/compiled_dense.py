"""Encode, check and count dense results (`optim.result_format`) with compiled CPU kernels.

Payloads stay packed, because their digits would take four times as much memory.
`optim.packed_dense` does the same on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.kernels.runtime import run_parallel
from aftermath.model.segments import view
from aftermath.optim import compiled_sparse, digits
from aftermath.optim.bitstrings import pack_bits
from aftermath.optim.lattice import LEAST, MOST, SMALLEST, fraction_bits
from aftermath.optim.layout import LevelLayout
from aftermath.optim.result_format import EXPONENT_BITS, whole_bytes

if TYPE_CHECKING:
    from aftermath.optim.level_kernels import LevelTensors

SPARE = 16
"""Zero bytes after a payload. Kernels read 8 bytes at once, also at its end."""
_AT_ONCE = 1 << 18  # numbers per task

Words = NDArray[np.uint64]


class Encoding:
    """Encodes a level whose blocks keep every number: run `tasks`, then read `payload`."""

    def __init__(
        self,
        layout: LevelLayout,
        residuals: Sequence[Tensor],
        gradients: Mapping[str, Tensor],
        factor: float,
        decay: float,
        previous: Sequence[tuple[Tensor, Tensor]] | None,
        value_bits: int,
    ) -> None:
        """`previous` is the last result, whose tensors are reused: see `compiled_sparse.encode`."""
        from aftermath.kernels import dense_encode

        kernel: Any = dense_encode.encode
        together = digits.PACKED[value_bits][0] * digits.WORD
        self._layout = layout
        self._bits = value_bits
        self._codes = np.zeros(-(-layout.numbers // together) * together, np.uint8)
        self._exponents = torch.empty(layout.blocks, dtype=torch.uint8)
        self.chosen = list(previous) if previous is not None else compiled_sparse.room(layout)
        self.tasks: list[compiled_sparse.Task] = []
        sent = previous is not None
        least = int(np.float32(SMALLEST).view(np.uint32))
        start = number = 0
        for part in layout.parts:
            group = layout.groups[part.group]
            lattice = (sent, least, value_bits, fraction_bits(group.block), LEAST, MOST)
            whole = [
                part.of(tensor).numpy()
                for tensor in (residuals[part.group], *self.chosen[part.group])
            ]
            for first, count, memory in compiled_sparse.memory_of(
                view(gradients, part.segment), part
            ):
                blocks, *entries = (numbers[first : first + count] for numbers in whole)
                how = (*memory, part.blocks.grid[-1], np.float32(decay), np.float32(factor))
                at = (start + first * group.block, self._exponents.numpy(), number + first)
                self.tasks += [
                    partial(kernel, blocks, *cut, *how, *entries, *lattice, self._codes, *at)
                    for cut in _cuts(count, group.block)
                ]
            start += part.blocks.count * group.block
            number += part.blocks.count

    def payload(self) -> bytes:
        """Return the level's bytes once the tasks have run."""
        exponents = pack_bits(
            (
                self._exponents[:, None] >> torch.arange(EXPONENT_BITS, dtype=torch.uint8) & 1
            ).flatten()
        )
        at = len(exponents)
        size = at + digits.size_of(self._layout.numbers, self._bits)
        room = np.empty(size + digits.WORD, np.uint8)  # the last word may be longer than its digits
        room[:at] = exponents.numpy()
        pack(self._codes, room[at:], self._bits)
        return room[:size].tobytes()


def pack(codes: NDArray[np.uint8], target: NDArray[np.uint8], value_bits: int) -> None:
    """Pack digit codes, as many as whole words need, into the target's first bytes."""
    from aftermath.kernels import dense_encode

    kernel: Any = dense_encode.pack
    together, width = digits.PACKED[value_bits]
    words = len(codes) // (together * digits.WORD)
    run_parallel(
        partial(kernel, codes, target, *cut, together, width, 1 + (1 << value_bits))
        for cut in _cuts(words, together * digits.WORD)
    )


def padded(data: bytes | bytearray | memoryview) -> Tensor:
    """Return a copy of the bytes, uint8 [n], followed in memory by zeros."""
    room = torch.zeros(len(data) + SPARE, dtype=torch.uint8)
    room.numpy()[: len(data)] = np.frombuffer(data, np.uint8)
    return room[: len(data)]


def check(payload: Tensor, digits_at: int, layout: LevelLayout, value_bits: int) -> bool:
    """Return whether a `padded` payload has valid digits and exponents."""
    from aftermath.kernels import dense

    kernel: Any = dense.check
    starts, sizes = _spans(layout)
    together, width = digits.PACKED[value_bits]
    known = _digit_table(value_bits)
    valid = []

    def check_blocks(first: int, last: int) -> None:
        blocks = (payload.data_ptr(), first, last, starts, sizes, digits_at)
        valid.append(kernel(*blocks, together, width, MOST - LEAST + 1, known))

    run_parallel(partial(check_blocks, *cut) for cut in _cuts(layout.blocks, int(sizes.max())))
    return all(valid)


def count(
    payloads: Sequence[Tensor],
    table: LevelTensors,
    value_bits: int,
    most: int,
    divisors: Sequence[float],
    rate: float,
) -> None:
    """Subtract the mean of checked payloads from the table's tensors, or store it there.

    `most`, `divisors` and `rate` are those of `dense_votes.means`.
    """
    from aftermath.kernels import dense

    kernel: Any = dense.apply_mean
    together, width = digits.PACKED[value_bits]
    known = _digit_table(value_bits)
    lines = table.lines.numpy()
    sizes = lines[:, 6] * lines[:, 7]
    where = (lines, table.part_of.numpy())
    sent = np.array([payload.data_ptr() for payload in payloads], np.int64)
    digits_at = whole_bytes(EXPONENT_BITS * table.blocks)
    how = (together, width, known, *_lanes(value_bits), int(known.max()))
    by = np.array(divisors, np.float64)
    run_parallel(
        partial(kernel, *where, *cut, sent, digits_at, *how, most, by, rate)
        for cut in _cuts(table.blocks, int(sizes.max()))
    )


@lru_cache(maxsize=64)
def _spans(layout: LevelLayout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each block's first digit and number of digits, in canonical order."""
    counts = [part.blocks.count for part in layout.parts]
    sizes = np.repeat([layout.groups[part.group].block for part in layout.parts], counts)
    return np.cumsum(sizes) - sizes, sizes


def _cuts(blocks: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the range [first, last) of blocks of each task. A block has at most `size` numbers."""
    step = max(1, _AT_ONCE // size)
    for first in range(0, blocks, step):
        yield first, min(first + step, blocks)


@lru_cache(maxsize=2)
def _digit_table(value_bits: int) -> NDArray[np.int8]:
    """Return the digits of every code, as a writable array, which kernels need."""
    return digits.table(value_bits).copy()


@lru_cache(maxsize=2)
def _lanes(value_bits: int) -> tuple[Words, int, Words]:
    """Return words of digits [shifts * codes], the number of shifts, and words of votes [codes].

    A word has one lane for each digit of a code. The largest digit is added to each digit, so that
    no lane is negative. Row s of the first table is shifted left by s. A vote's lane is 1.
    """
    together, width = digits.PACKED[value_bits]
    known = digits.table(value_bits).astype(np.int64)
    lane = 64 // together
    places = np.arange(0, lane * together, lane)
    raised = (known + known.max()) << places
    votes = (known != 0).astype(np.int64) << places
    tables = []
    for numbers, shifts in ((raised, lane), (votes, 1)):
        table = np.zeros((shifts, 1 << width), np.uint64)
        for shift in range(shifts):
            table[shift, : len(known)] = numbers.sum(1).astype(np.uint64) << np.uint64(shift)
        tables.append(table.reshape(-1))
    return tables[0], lane, tables[1]
