"""Fingerprints of token files, so that members with other files are detected before they train.

A record has a file's name, its size and the SHA-256 of sampled blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from aftermath.data.source import FileRecord, Span, Store

# Hashing the whole corpus would make every start read all of it. Another tokenizer, order or cut
# changes nearly every sampled block. A single changed byte may go undetected, but it harms only
# that member's results.
BLOCK = 4096  # bytes
MAX_BLOCKS = 1024  # for all files together; each file has at least one
MAX_BLOCKS_OF_FILE = 16


def file_records(store: Store) -> tuple[FileRecord, ...]:
    """Return the records of a store's files. Raise what reading raises."""
    return records_from_blocks(store, sampled_blocks(store))


def sampled_blocks(store: Store) -> list[tuple[Span, bytes]]:
    """Read the sampled blocks of a store's files. Raise what reading raises."""
    each = max(1, min(MAX_BLOCKS_OF_FILE, MAX_BLOCKS // len(store.files)))
    spans = [
        span for number, file in enumerate(store.files) for span in _blocks(number, file.size, each)
    ]
    return list(zip(spans, store.read(spans), strict=True))


def records_from_blocks(
    store: Store, blocks: Sequence[tuple[Span, bytes]]
) -> tuple[FileRecord, ...]:
    """Return the records of a store's files from their sampled blocks."""
    digests = [hashlib.sha256() for _ in store.files]
    for span, data in blocks:
        digests[span.file].update(data)
    return tuple(
        FileRecord(file.base, file.size, digest.hexdigest())
        for file, digest in zip(store.files, digests, strict=True)
    )


def records_hash(records: Sequence[FileRecord]) -> bytes:
    """Return the SHA-256 of the records as canonical JSON, 32 bytes."""
    return hashlib.sha256(
        msgspec.json.encode([asdict(record) for record in records], order="sorted")
    ).digest()


def _blocks(file: int, size: int, count: int) -> list[Span]:
    """Return `count` evenly spaced blocks, the first and last included; for 1, the middle block.

    A shorter file is one block.
    """
    if size <= BLOCK * count:
        return [Span(file, 0, size)]
    if count == 1:
        return [Span(file, (size - BLOCK) // 2, BLOCK)]
    return [Span(file, (size - BLOCK) * number // (count - 1), BLOCK) for number in range(count)]
