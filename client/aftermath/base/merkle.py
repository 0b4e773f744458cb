"""Hash many blocks of bytes into one root, and prove that a block is one of them.

A binary tree of BLAKE3 hashes. A node without a neighbour moves up unchanged. Blocks, nodes and the
root are hashed in separate contexts, so that one cannot pass for another. The root includes the
number of blocks, which fixes the length of every proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blake3 import blake3

DIGEST = 32
"""Bytes of a hash."""
_BLOCK, _NODE, _ROOT = (
    f"aftermath {what} of a tree of blocks 1" for what in ("block", "node", "root")
)


def block_digest(block: bytes | memoryview) -> bytes:
    """Return the hash of a block as it appears in a tree."""
    return blake3(block, derive_key_context=_BLOCK).digest()


class Tree:
    """All hashes over the digests of one or more blocks."""

    def __init__(self, digests: Sequence[bytes]) -> None:
        self._rows = [list(digests)]
        while len(row := self._rows[-1]) > 1:
            pairs = [_node(row[at], row[at + 1]) for at in range(0, len(row) - 1, 2)]
            self._rows.append(pairs + row[len(row) & ~1 :])
        self.root = _root(len(digests), self._rows[-1][0])

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._rows[0])

    def digest(self, index: int) -> bytes:
        """Return the digest of a block."""
        return self._rows[0][index]

    def proof(self, index: int) -> list[bytes]:
        """Return the hashes that lead from a block to the root, bottom up."""
        neighbours = zip(self._rows, _neighbours(index, len(self)), strict=False)
        return [row[at] for row, at in neighbours if at is not None]


def proof_length(index: int, count: int) -> int:
    """Return how many hashes the proof of a block has, for `count` blocks."""
    return sum(at is not None for at in _neighbours(index, count))


def proves(
    block: bytes | memoryview, index: int, count: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Return whether this is block `index` of the `count` blocks with that root."""
    if not 0 <= index < count or len(proof) != proof_length(index, count):
        return False
    digest = block_digest(block)
    hashes = iter(proof)
    for at in _neighbours(index, count):
        if at is not None:
            neighbour = next(hashes)
            digest = _node(digest, neighbour) if at % 2 else _node(neighbour, digest)
    return _root(count, digest) == root


def _neighbours(index: int, count: int) -> Iterator[int | None]:
    """Return, per row, which hash is combined with the block's. None where there is none."""
    while count > 1:
        at = index ^ 1
        yield at if at < count else None
        index, count = index // 2, (count + 1) // 2


def _node(left: bytes, right: bytes) -> bytes:
    return blake3(left + right, derive_key_context=_NODE).digest()


def _root(count: int, top: bytes) -> bytes:
    return blake3(count.to_bytes(8, "little") + top, derive_key_context=_ROOT).digest()
