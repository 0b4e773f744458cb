"""Compiled CPU kernels for error feedback and for the applies of DisTrO and SparseLoCo.

The kernels need numba, and tensors with contiguous rows in CPU memory. torch handles all other
cases. Tests compare both. A level is cut into tasks of whole blocks, so the number of threads does
not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.kernels.runtime import run_parallel
from aftermath.model.segments import view
from aftermath.optim.dct_basis import COLUMN_SUM_BITS, basis
from aftermath.optim.lattice import LEAST, MOST, fraction_bits
from aftermath.optim.layout import LevelLayout, Part
from aftermath.optim.level_votes import Votes
from aftermath.optim.transform import matrices

_AT_ONCE = 1 << 18  # numbers per task
_CPU = torch.device("cpu")

Task = Callable[[], None]
Numbers = NDArray[np.int64]


def works() -> bool:
    """Return whether kernels work on this machine. The first call compiles and tests them."""
    from aftermath.optim.compiled_proof import unfit

    return unfit() is None


def usable(params: Mapping[str, Tensor]) -> bool:
    """Return whether kernels work on this machine and support these tensors."""
    return all(t.device == _CPU and t.stride(-1) == 1 for t in params.values()) and works()


def encode(
    layout: LevelLayout,
    residuals: Sequence[Tensor],
    gradients: Mapping[str, Tensor],
    factor: float,
    decay: float,
    previous: Sequence[tuple[Tensor, Tensor]] | None,
    transformed: bool,
    smallest: float,
    bits: int,
) -> tuple[list[tuple[Tensor, Tensor]], list[Task]]:
    """Return tensors for a level's next indices and values per group, and the tasks that fill them.

    The tasks also update the residuals. They reuse the tensors of `previous`, the last result.
    """
    from aftermath.kernels import sparse_encode as kernels

    kernel: Any = kernels.encode
    sent = previous is not None
    previous = room(layout) if previous is None else previous
    tasks: list[Task] = []
    for part in layout.parts:
        group = layout.groups[part.group]
        indices, values = previous[part.group]
        how: tuple[Any, ...] = (
            *(np.float32(decay), np.float32(factor), transformed),
            *(basis(edge, torch.float32, _CPU).numpy() for edge in (group.height, group.width)),
        )
        least = int(np.float32(smallest).view(np.uint32))
        lattice = (sent, least, bits, fraction_bits(group.topk), LEAST, MOST)
        whole = [part.of(tensor).numpy() for tensor in (residuals[part.group], indices, values)]
        for first, count, memory in memory_of(view(gradients, part.segment), part):
            blocks, *entries = (numbers[first : first + count] for numbers in whole)
            place = (*memory, part.blocks.grid[-1])
            tasks += [
                partial(kernel, blocks, *cut, *place, *how, *entries, *lattice)
                for cut in _cuts(count, group.block)
            ]
    return list(previous), tasks


def room(layout: LevelLayout) -> list[tuple[Tensor, Tensor]]:
    """Return new tensors for the indices and values of each group."""
    shapes = [(group.blocks, group.topk) for group in layout.groups]
    return [(torch.empty(shape, dtype=torch.int64), torch.empty(shape)) for shape in shapes]


class Counted:
    """The votes of at least one member on a level, indexed by block."""

    def __init__(self, votes: Sequence[Votes], layout: LevelLayout) -> None:
        """Raise ValueError for positions outside the level."""
        from aftermath.kernels.aggregate import spans

        groups = layout.groups
        ends = np.cumsum([0, *(group.blocks for group in groups)])
        where = (np.array([g.base for g in groups]), np.array([g.block for g in groups]), ends)
        self._layout = layout
        self._first_block = ends
        self._whole = any(vote.values.dtype == torch.int64 for vote in votes)
        self._starts = np.zeros((len(votes), int(ends[-1])), np.int64)
        self._stops = np.zeros_like(self._starts)
        self._addresses = np.zeros((len(votes), 3), np.int64)
        self._held: list[tuple[Tensor | None, ...]] = [()] * len(votes)

        def find(member: int, vote: Votes) -> None:
            positions, values, shifts = vote.positions.contiguous(), *self._values(vote)
            starts = self._starts[member]
            stops = self._stops[member]
            ranges = spans(positions.numpy(), *where, starts, stops)
            if ranges == 0:  # the positions are not in wire order
                positions, order = positions.sort()
                values, shifts = values[order], None if shifts is None else shifts[order]
                starts[:] = 0
                stops[:] = 0
                ranges = spans(positions.numpy(), *where, starts, stops)
            if ranges < 0:
                raise ValueError("a vote has a position outside the level")
            self._held[member] = (positions, values, shifts)
            self._addresses[member] = [0 if t is None else t.data_ptr() for t in self._held[member]]

        run_parallel(partial(find, member, vote) for member, vote in enumerate(votes))

    def _values(self, vote: Votes) -> tuple[Tensor, Tensor | None]:
        """Return a member's values and shifts, in the dtype that all members share."""
        if self._whole:
            return vote.multiples(), None
        return vote.values.contiguous(), None if vote.shifts is None else vote.shifts.contiguous()

    def mean(
        self, params: Mapping[str, Tensor], most: int, divisors: Sequence[float], rate: float
    ) -> Iterator[Task]:
        """Yield the tasks that change a level's parameters like `optim.sparseloco_apply`."""
        from aftermath.kernels import aggregate

        kernel: Any = aggregate.apply_mean
        counted = (self._addresses, self._whole, self._starts, self._stops)
        by = np.array(divisors, np.float64)
        for _, place in self._places(params):
            yield partial(kernel, *place, *counted, most, by, rate)

    def sign(
        self,
        params: Mapping[str, Tensor],
        keep: Callable[[Part], float],
        rate: float,
        mean_bits: int,
    ) -> Iterator[Task]:
        """Yield the tasks that change a level's parameters like `optim.distro_apply`.

        `keep` is the factor of each segment after weight decay.
        """
        from aftermath.kernels import aggregate

        kernel: Any = aggregate.apply_signs
        counted = (self._addresses, self._starts, self._stops)
        for part, place in self._places(params):
            height, width = place[4:6]
            rates = (mean_bits, COLUMN_SUM_BITS, np.float32(keep(part)), np.float32(rate))
            yield partial(kernel, *place, *counted, *_bases(height, width), *rates)

    def _places(self, params: Mapping[str, Tensor]) -> Iterator[tuple[Part, tuple[Any, ...]]]:
        """Yield segments with their kernels' arguments (memory and blocks), task by task."""
        for part in self._layout.parts:
            group = self._layout.groups[part.group]
            for number, count, memory in memory_of(view(params, part.segment), part):
                first = part.first + number
                low = group.base + first * group.block
                block = int(self._first_block[part.group]) + first
                for cut in _cuts(count, group.block):
                    yield (
                        part,
                        (
                            *memory,
                            group.height,
                            group.width,
                            part.blocks.grid[-1],
                            *cut,
                            low,
                            block,
                        ),
                    )


def _bases(height: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the integer bases of height and width. The basis of the height is transposed."""
    tall, wide = (basis(edge, torch.float64, _CPU).numpy() for edge in (height, width))
    return np.ascontiguousarray(tall.T), wide


def memory_of(
    tensor: Tensor, part: Part
) -> Iterator[tuple[int, int, tuple[NDArray[np.float32], int, int, int]]]:
    """Yield each matrix of a segment: its first block, its number of blocks, and its memory.

    The memory is the flat array, the stride from row to row, the rows and the columns.
    """
    stack = matrices(tensor.detach())
    if stack.stride(2) != 1:
        stack = stack.contiguous()
    count = part.blocks.count // len(stack)
    for number, matrix in enumerate(stack):
        rows, columns = matrix.shape
        stride = matrix.stride(0)
        memory = matrix.as_strided(((rows - 1) * stride + columns,), (1,)).numpy()
        yield number * count, count, (memory, stride, rows, columns)


def _cuts(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield [first, last) for each task of `count` blocks of `size` numbers."""
    step = max(1, _AT_ONCE // size)
    for first in range(0, count, step):
        yield first, min(first + step, count)
