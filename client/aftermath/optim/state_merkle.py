"""Cut a replica's private state into blocks of bytes, and hash them into one Merkle root.

The tensors of `Engine.state_tensors`, ordered by name, are cut into blocks of BLOCK bytes. No block
spans two tensors. The schema and the tier determine the blocks (`engine.outline_of`). Before the
first trained round the state is empty and has no blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from torch import Tensor

from aftermath.base.merkle import DIGEST, Tree, block_digest
from aftermath.kernels.runtime import run_parallel

BLOCK = 1 << 18
"""Bytes of a block."""
_PIECE = 64 * BLOCK  # bytes hashed by one thread, and copied from a device at a time


class BlockSpan(NamedTuple):
    """The location of a block: bytes `start` up to `stop` of a tensor."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Return the block's bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class StateOutline:
    """The tensors of a private state, in order, and their sizes in bytes."""

    sizes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Return the bytes of all tensors."""
        return sum(size for _, size in self.sizes)

    @cached_property
    def _firsts(self) -> list[int]:
        """Return the index of every tensor's first block, and the number of blocks."""
        return list(accumulate((-(-size // BLOCK) for _, size in self.sizes), initial=0))

    @property
    def count(self) -> int:
        """Return the number of blocks."""
        return self._firsts[-1]

    def place(self, index: int) -> BlockSpan:
        """Return the location of a block. Raises IndexError."""
        if not 0 <= index < self.count:
            raise IndexError(f"block {index} does not exist: there are {self.count}")
        which = bisect_right(self._firsts, index) - 1
        name, size = self.sizes[which]
        start = (index - self._firsts[which]) * BLOCK
        return BlockSpan(name, start, min(start + BLOCK, size))


def outline(sizes: Mapping[str, int]) -> StateOutline:
    """Return the outline of tensors by name and bytes. Empty tensors have no block."""
    return StateOutline(tuple((name, size) for name, size in sorted(sizes.items()) if size))


def tree_of(tensors: Mapping[str, Tensor]) -> Tree:
    """Return the tree over the blocks of a state that has at least one."""
    return Tree(digests_of(tensors))


def digests_of(tensors: Mapping[str, Tensor]) -> list[bytes]:
    """Return the digests of all blocks of a state, in order. Use as many threads as torch."""
    return _digests((tensor, 0, tensor.nbytes) for _, tensor in sorted(tensors.items()))


def block_of(tensors: Mapping[str, Tensor], place: BlockSpan) -> bytes:
    """Return the current bytes of a block. They are empty if its tensor no longer exists."""
    tensor = tensors.get(place.name)
    return b"" if tensor is None else bytes(_bytes(tensor, place.start, place.stop))


def summary_of(tensor: Tensor, start: int, size: int) -> bytes:
    """Summarise one rank's bytes of a tensor, so that another rank can hash the whole tensor.

    The bytes begin at `start` of a tensor of `size` bytes. Return the bytes before the first whole
    block, the digests of the whole blocks, and the bytes after them.
    """
    stop = start + tensor.nbytes
    first, last = _whole(start, stop, size)
    digests = _digests([(tensor, first - start, last - start)])
    return b"".join(
        [_bytes(tensor, 0, first - start), *digests, _bytes(tensor, last - start, stop - start)]
    )


def digests_of_summaries(runs: Iterable[tuple[int, int, bytes]], size: int) -> list[bytes]:
    """Return the digests of a tensor's blocks from summaries of its bytes [start, stop).

    `runs` covers the whole tensor, in order.
    """
    digests: dict[int, bytes] = {}
    ends: defaultdict[int, bytearray] = defaultdict(bytearray)
    for start, stop, summary in runs:
        first, last = _whole(start, stop, size)
        ends[start // BLOCK] += summary[: first - start]
        at = first - start
        for block in range(first // BLOCK, -(-last // BLOCK) if last > first else 0):
            digests[block] = summary[at : at + DIGEST]
            at += DIGEST
        ends[last // BLOCK] += summary[at:]
    digests |= {block: block_digest(bytes(end)) for block, end in ends.items() if end}
    return [digests[block] for block in range(-(-size // BLOCK))]


def _whole(start: int, stop: int, size: int) -> tuple[int, int]:
    """Return the span of the blocks that lie within [start, stop) of a tensor of `size` bytes."""
    first = min(-(-start // BLOCK) * BLOCK, stop)
    return first, stop if stop == size else max(stop // BLOCK * BLOCK, first)


def _digests(runs: Iterable[tuple[Tensor, int, int]]) -> list[bytes]:
    """Return the digests of the blocks of bytes [start, stop) of each tensor."""
    parts: list[list[bytes]] = []
    tasks = []
    for tensor, first, last in runs:
        for start in range(first, last, _PIECE):
            digests: list[bytes] = []
            parts.append(digests)
            tasks.append(partial(_hash, tensor, start, min(start + _PIECE, last), digests))
    run_parallel(tasks)
    return [digest for digests in parts for digest in digests]


def _hash(tensor: Tensor, start: int, stop: int, digests: list[bytes]) -> None:
    digests += map(block_digest, _blocks(_bytes(tensor, start, stop)))


def _blocks(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))


def _bytes(tensor: Tensor, start: int, stop: int) -> memoryview:
    """Return a tensor's bytes, little-endian and row-major, without copying contiguous memory."""
    flat = (
        tensor.detach()
        .reshape(-1)[start // tensor.itemsize : stop // tensor.itemsize]
        .cpu()
        .numpy()
    )
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
