"""What a replica alone knows, as blocks of bytes under one hash: its root.

Decided
- The tensors are those of `Engine.remembered` in the order of their names, cut into blocks of BLOCK bytes; none has
  bytes of two tensors, so the last of a tensor may be shorter. Which there are, and how large, follows from the schema
  and the tier (`engine.outline_of`): whoever asks for a block knows its size before.
- Bytes are little-endian, row-major. They are hashed where they lie; of tensors on a device a piece at a time is
  copied.
- Whoever holds a run of a tensor's bytes hashes the blocks that lie within it, and hands on the bytes at its ends.
- It is the state after a trained round. Before its first one a replica knows nothing, and that has no blocks.
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
from aftermath.kernels.use import run

BLOCK = 1 << 18
"""Bytes of a block."""
_PIECE = 64 * BLOCK  # what is hashed by one thread, and copied at a time from a device


class BlockSpan(NamedTuple):
    """Where a block lies: bytes `start` up to `stop` of a tensor."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class StateOutline:
    """Which tensors a private state has, in order, and how many bytes each."""

    sizes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(size for _, size in self.sizes)

    @cached_property
    def _firsts(self) -> list[int]:
        """The index of every tensor's first block, and how many blocks there are."""
        return list(accumulate((-(-size // BLOCK) for _, size in self.sizes), initial=0))

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return self._firsts[-1]

    def place(self, index: int) -> BlockSpan:
        """Where a block lies. Raises IndexError if there is none of that index."""
        if not 0 <= index < self.count:
            raise IndexError(f"there are {self.count} blocks, and none of index {index}")
        which = bisect_right(self._firsts, index) - 1
        name, size = self.sizes[which]
        start = (index - self._firsts[which]) * BLOCK
        return BlockSpan(name, start, min(start + BLOCK, size))


def outline(sizes: Mapping[str, int]) -> StateOutline:
    """Of tensors by name and bytes; those without any have no block."""
    return StateOutline(tuple((name, size) for name, size in sorted(sizes.items()) if size))


def tree_of(remembered: Mapping[str, Tensor]) -> Tree:
    """The tree over the blocks of a state, of which there is at least one."""
    return Tree(digests_of(remembered))


def digests_of(remembered: Mapping[str, Tensor]) -> list[bytes]:
    """The digests of all blocks of a state, in their order; on as many threads as torch takes."""
    return _digests((tensor, 0, tensor.nbytes) for _, tensor in sorted(remembered.items()))


def block_of(remembered: Mapping[str, Tensor], place: BlockSpan) -> bytes:
    """The bytes of a block, as they are now; nothing of a tensor that is not there any more."""
    tensor = remembered.get(place.name)
    return b"" if tensor is None else bytes(_bytes(tensor, place.start, place.stop))


def told_of(tensor: Tensor, start: int, size: int) -> bytes:
    """What a run of bytes says of the blocks of a tensor of `size` bytes, in which it begins at `start`.

    Its bytes before the first block that it has whole, the digests of those that it has, and its bytes after them.
    """
    stop = start + tensor.nbytes
    first, last = _whole(start, stop, size)
    digests = _digests([(tensor, first - start, last - start)])
    return b"".join([_bytes(tensor, 0, first - start), *digests, _bytes(tensor, last - start, stop - start)])


def told_size(start: int, stop: int, size: int) -> int:
    """Bytes of what the run [start, stop) says."""
    first, last = _whole(start, stop, size)
    return first - start + DIGEST * -(-(last - first) // BLOCK) + stop - last


def digests_told(runs: Iterable[tuple[int, int, bytes]], size: int) -> list[bytes]:
    """The digests of all blocks of a tensor of `size` bytes, of what the runs [start, stop) of it say, in order."""
    found: dict[int, bytes] = {}
    ends: defaultdict[int, bytearray] = defaultdict(bytearray)
    for start, stop, told in runs:
        first, last = _whole(start, stop, size)
        ends[start // BLOCK] += told[: first - start]
        at = first - start
        for block in range(first // BLOCK, -(-last // BLOCK) if last > first else 0):
            found[block] = told[at : at + DIGEST]
            at += DIGEST
        ends[last // BLOCK] += told[at:]
    found |= {block: block_digest(bytes(end)) for block, end in ends.items() if end}
    return [found[block] for block in range(-(-size // BLOCK))]


def _whole(start: int, stop: int, size: int) -> tuple[int, int]:
    """From where to where those blocks reach that lie within [start, stop), of a tensor of `size` bytes."""
    first = min(-(-start // BLOCK) * BLOCK, stop)
    return first, stop if stop == size else max(stop // BLOCK * BLOCK, first)


def _digests(runs: Iterable[tuple[Tensor, int, int]]) -> list[bytes]:
    """Of the blocks of bytes [start, stop) of each tensor."""
    found: list[list[bytes]] = []
    tasks = []
    for tensor, first, last in runs:
        for start in range(first, last, _PIECE):
            digests: list[bytes] = []
            found.append(digests)
            tasks.append(partial(_hash, tensor, start, min(start + _PIECE, last), digests))
    run(tasks)
    return [digest for digests in found for digest in digests]


def _hash(tensor: Tensor, start: int, stop: int, digests: list[bytes]) -> None:
    digests += map(block_digest, _blocks(_bytes(tensor, start, stop)))


def _blocks(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))


def _bytes(tensor: Tensor, start: int, stop: int) -> memoryview:
    """Bytes of a tensor, of whole numbers; not copied if it lies in host memory without gaps."""
    flat = tensor.detach().reshape(-1)[start // tensor.itemsize : stop // tensor.itemsize].cpu().numpy()
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
