"""A cache on disk for sequences that were fetched over HTTP.

If the folder cannot be written, the cache logs one warning and stops storing. To start again,
remove the folder.
"""

from __future__ import annotations

import hashlib
import logging
import math
from pathlib import Path

from blake3 import blake3

# The cache stops growing at this size.
MOST_BYTES = 20 << 30
_HASH_BYTES = 32
_PAGE = 4096
_log = logging.getLogger(__name__)


class Cache:
    """Stored sequences in one folder, which grows to at most `most` bytes."""

    def __init__(self, folder: Path, most: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most = most
        self._broken = False
        self._counter = folder / "used"

    def get(self, key: str, start: int, length: int) -> bytes | None:
        """Return `length` stored bytes of a file from `start`, or None if they are not complete."""
        try:
            with self._path(key, start, length).open("rb") as file:
                stored = file.read(_HASH_BYTES + length + 1)
        except OSError:
            return None
        digest = stored[:_HASH_BYTES]
        data = stored[_HASH_BYTES:]
        return data if len(data) == length and blake3(data).digest() == digest else None

    def put(self, key: str, start: int, data: bytes) -> None:
        """Store bytes if the folder can be written and has room."""
        if self._broken:
            return
        path = self._path(key, start, len(data))
        pages = math.ceil((_HASH_BYTES + len(data)) / _PAGE)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The length of the file `used` is the number of pages in use. Processes can append to
            # it without a lock, and no process has to count millions of files.
            with self._counter.open("ab") as used:
                if (used.tell() + pages) * _PAGE > self._most:
                    return
                used.write(bytes(pages))
            # A full disk or a crash can leave a damaged file. Its BLAKE3 detects that, so the write
            # needs no sync and no rename.
            path.write_bytes(blake3(data).digest() + data)
        except OSError as error:
            self._broken = True
            _log.warning(
                "stopped using the cache %s, which cannot store more data: %s",
                self._folder,
                error.strerror,
            )
            try:
                path.unlink()
            except OSError:
                pass

    def _path(self, key: str, start: int, length: int) -> Path:
        # The key contains address, size and ETag, so a changed file gets no old data.
        file = hashlib.sha256(key.encode()).hexdigest()[:32]
        return self._folder / file / f"{start >> 24:x}" / f"{start}-{length}"
