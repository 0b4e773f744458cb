"""Sequences that were fetched once, kept on this machine's disk.

Decided
- A file for each, under the hash of what it is part of (address, size, ETag): a changed file finds nothing of the old.
- Each begins with the BLAKE3 of what follows, since a disk that was full or a machine that stopped leaves files that
  are none; such a file counts as missing. So nothing here is forced to disk or renamed.
- A cache never stands in the way: where it cannot be written it is not used any more, and that is told once.
- It grows up to MOST_BYTES in all, and then takes nothing more. `used` counts for all processes: its size in bytes is
  the number of pages that the others take, and what is appended to a file adds up without a lock. Nobody counts the
  files themselves, which are millions. Remove the whole folder to begin again.
"""

from __future__ import annotations

import hashlib
import logging
import math
from pathlib import Path

from blake3 import blake3

MOST_BYTES = 20 << 30
_MARK, _PAGE = 32, 4096
_log = logging.getLogger(__name__)


class Cache:
    """Kept sequences, in a folder of their own."""

    def __init__(self, folder: Path, most: int = MOST_BYTES) -> None:
        self._folder, self._most, self._broken = folder, most, False
        self._counter = folder / "used"

    def get(self, key: str, start: int, length: int) -> bytes | None:
        """What was kept of a file from `start`, if all of it is there."""
        try:
            with self._path(key, start, length).open("rb") as file:
                held = file.read(_MARK + length + 1)
        except OSError:
            return None
        mark, data = held[:_MARK], held[_MARK:]
        return data if len(data) == length and blake3(data).digest() == mark else None

    def put(self, key: str, start: int, data: bytes) -> None:
        """Keep it, if that can be done."""
        if self._broken:
            return
        path = self._path(key, start, len(data))
        pages = math.ceil((_MARK + len(data)) / _PAGE)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._counter.open("ab") as used:
                if (used.tell() + pages) * _PAGE > self._most:
                    return
                used.write(bytes(pages))
            path.write_bytes(blake3(data).digest() + data)
        except OSError as error:
            self._broken = True
            _log.warning("the cache %s takes no more data, and is done without: %s", self._folder, error.strerror)
            try:
                path.unlink()
            except OSError:
                pass

    def _path(self, key: str, start: int, length: int) -> Path:
        file = hashlib.sha256(key.encode()).hexdigest()[:32]
        return self._folder / file / f"{start >> 24:x}" / f"{start}-{length}"
