"""Test that a proof holds only for its own block, index and root."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from aftermath.base.merkle import DIGEST, Tree, block_digest, proof_length, proves


def blocks(count: int) -> list[bytes]:
    return [b"block %d" % index for index in range(count)]


def tree(count: int) -> Tree:
    return Tree([block_digest(block) for block in blocks(count)])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 100])
def test_merkle_proof_holds_only_for_its_block_and_place(count: int) -> None:
    merkle_tree = tree(count)
    assert len(merkle_tree) == count
    for index, block in enumerate(blocks(count)):
        proof = merkle_tree.proof(index)
        assert len(proof) == proof_length(index, count) <= count.bit_length()
        assert proves(block, index, count, proof, merkle_tree.root)
        assert not proves(block + b" ", index, count, proof, merkle_tree.root)
        for other in {(index + 1) % count, index ^ 1, -1, count} - {index}:
            assert not proves(block, other, count, proof, merkle_tree.root)
        for wrong in (count - 1, count + 1):
            assert not proves(block, index, wrong, proof, merkle_tree.root)


@given(st.integers(1, 40), st.data())
def test_merkle_proof_with_changed_bytes_fails(count: int, data: st.DataObject) -> None:
    merkle_tree = tree(count)
    index = data.draw(st.integers(0, count - 1))
    proof = merkle_tree.proof(index)
    block = blocks(count)[index]
    parts = [*proof, merkle_tree.root]
    at = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 8 * DIGEST - 1))
    changed = bytearray(parts[at])
    changed[bit // 8] ^= 1 << bit % 8
    parts[at] = bytes(changed)
    assert not proves(block, index, count, parts[:-1], parts[-1])
    assert not proves(block, index, count, [*proof, bytes(DIGEST)], merkle_tree.root)
    if proof:
        assert not proves(block, index, count, proof[:-1], merkle_tree.root)


def test_blocks_nodes_and_roots_cannot_be_taken_for_each_other() -> None:
    """The attack presents the two digests below a node as one block of a smaller tree."""
    merkle_tree = tree(2)
    below = b"".join(block_digest(block) for block in blocks(2))
    assert block_digest(below) != merkle_tree._rows[1][0]
    assert not proves(below, 0, 1, [], merkle_tree.root)
    assert block_digest(b"x") != blake3(b"x").digest(), "nor for a payload's hash"


def test_merkle_root_keeps_golden_value() -> None:
    """Members of different versions must agree on the root.

    The test recomputes it from its contexts, order and count.
    """

    def derived(what: str, data: bytes) -> bytes:
        return blake3(data, derive_key_context=f"aftermath {what} of a tree of blocks 1").digest()

    a, b, c = (derived("block", block) for block in blocks(3))
    top = derived("node", derived("node", a + b) + c)
    assert tree(3).root == derived("root", (3).to_bytes(8, "little") + top)
