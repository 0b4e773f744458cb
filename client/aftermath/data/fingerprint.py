"""What marks a row of files, so that members whose files differ find out before they train.

Decided
- A file is marked by its name, its size, and the SHA-256 of sampled blocks: its first and its last, and others evenly
  between them. Hashing a corpus whole would make every start of every member read all of it. A file of another
  tokenizer, another order, or another cut differs in nearly every block. Single bytes that a member changed with
  intent are not found, and would harm only that member's own results.
- There are at most MOST_BLOCKS in all, and one of each file at least: a thousand files cost a thousand requests.
- The hash of the whole is SHA-256 of canonical JSON: the records in the files' order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from aftermath.data.source import FileRecord, Span, Store

BLOCK = 4096  # bytes
MOST_BLOCKS, MOST_OF_A_FILE = 1024, 16


def sampled(store: Store) -> tuple[FileRecord, ...]:
    """The records of a store's files. Raises what reading raises."""
    return records_of(store, sampled_blocks(store))


def sampled_blocks(store: Store) -> list[tuple[Span, bytes]]:
    """Read the blocks by which a store's files are marked. Raises what reading raises."""
    each = max(1, min(MOST_OF_A_FILE, MOST_BLOCKS // len(store.files)))
    spans = [span for number, file in enumerate(store.files) for span in _blocks(number, file.size, each)]
    return list(zip(spans, store.read(spans), strict=True))


def records_of(store: Store, blocks: Sequence[tuple[Span, bytes]]) -> tuple[FileRecord, ...]:
    """Return the records of a store's files, by their sampled blocks."""
    digests = [hashlib.sha256() for _ in store.files]
    for span, data in blocks:
        digests[span.file].update(data)
    return tuple(
        FileRecord(file.base, file.size, digest.hexdigest()) for file, digest in zip(store.files, digests, strict=True)
    )


def hash_of(records: Sequence[FileRecord]) -> bytes:
    """SHA-256 over the records, 32 bytes."""
    return hashlib.sha256(msgspec.json.encode([asdict(record) for record in records], order="sorted")).digest()


def _blocks(file: int, size: int, count: int) -> list[Span]:
    """`count` blocks of a file, evenly from its first to its last, or the middle one; all of a file that is shorter."""
    if size <= BLOCK * count:
        return [Span(file, 0, size)]
    if count == 1:
        return [Span(file, (size - BLOCK) // 2, BLOCK)]
    return [Span(file, (size - BLOCK) * number // (count - 1), BLOCK) for number in range(count)]
