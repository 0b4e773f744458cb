"""What a replica alone knows, as blocks of bytes under one hash: its root.

Decided
- The tensors are those of `Engine.remembered` in the order of their names, cut into blocks of BLOCK bytes; none has
  bytes of two tensors, so the last of a tensor may be shorter. Which there are, and how large, follows from the schema
  and the tier (`outline_of`): whoever asks for a block knows its size before.
- Bytes are little-endian, row-major. They are hashed where they lie; of tensors on a device a piece at a time is
  copied.
- It is the state after a trained round. Before its first one a replica knows nothing, and that has no blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from aftermath.base.merkle import Tree, block_digest
from aftermath.kernels.use import run
from aftermath.optim.engine import Engine
from aftermath.optim.schema import Schema

BLOCK = 1 << 18
"""Bytes of a block."""
_PIECE = 64 * BLOCK  # what is hashed by one thread, and copied at a time from a device


class Place(NamedTuple):
    """Where a block lies: bytes `start` up to `stop` of a tensor."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Outline:
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

    def place(self, index: int) -> Place:
        """Where a block lies. Raises IndexError if there is none of that index."""
        if not 0 <= index < self.count:
            raise IndexError(f"there are {self.count} blocks, and none of index {index}")
        which = bisect_right(self._firsts, index) - 1
        name, size = self.sizes[which]
        start = (index - self._firsts[which]) * BLOCK
        return Place(name, start, min(start + BLOCK, size))


def outline(sizes: Mapping[str, int]) -> Outline:
    """Of tensors by name and bytes; those without any have no block."""
    return Outline(tuple((name, size) for name, size in sorted(sizes.items()) if size))


def outline_of(schema: Schema, tier: int) -> Outline:
    """The private state of a tier-`tier` member of a run with this schema. Raises SchemaError."""
    shapes = schema.state.config.parameter_shapes(tier)
    params = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return outline(Engine(schema, tier, params).sizes())


def tree_of(remembered: Mapping[str, Tensor]) -> Tree:
    """The tree over the blocks of a state, of which there is at least one; on as many threads as torch takes."""
    found: list[list[bytes]] = []
    tasks = []
    for _, tensor in sorted(remembered.items()):
        for start in range(0, tensor.nbytes, _PIECE):
            digests: list[bytes] = []
            found.append(digests)
            tasks.append(partial(_hash, tensor, start, min(start + _PIECE, tensor.nbytes), digests))
    run(tasks)
    return Tree([digest for digests in found for digest in digests])


def block_of(remembered: Mapping[str, Tensor], place: Place) -> bytes:
    """The bytes of a block, as they are now."""
    return bytes(_bytes(remembered[place.name], place.start, place.stop))


def _hash(tensor: Tensor, start: int, stop: int, digests: list[bytes]) -> None:
    digests += map(block_digest, _blocks(_bytes(tensor, start, stop)))


def _blocks(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))


def _bytes(tensor: Tensor, start: int, stop: int) -> memoryview:
    """Bytes of a tensor, of whole numbers; not copied if it lies in host memory without gaps."""
    flat = tensor.detach().reshape(-1)[start // tensor.itemsize : stop // tensor.itemsize].cpu().numpy()
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
