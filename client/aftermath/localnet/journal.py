"""An append-only file of checked records: u32 length, u32 CRC-32 of the payload, u32 CRC-32 of those eight bytes,
payload.

Decided: a record is acknowledged only after `fdatasync`; several records share one write and one sync (group
commit). A record cut short at the end of the file was never acknowledged and is dropped with a log line; damage
anywhere else is an error, because dropping acknowledged transactions silently is worse than not starting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from aftermath.base.files import sync_bytes
from aftermath.localnet.errors import OPTIONS, LedgerError
from aftermath.localnet.records import Head, Record, decode, encode

log = logging.getLogger(__name__)

_HEADER = struct.Struct("<III")
_PREFIX = struct.Struct("<II")
MAX_RECORD_BYTES = 64 * 1024 * 1024


def frame(record: Record) -> bytes:
    payload = encode(record)
    prefix = _PREFIX.pack(len(payload), zlib.crc32(payload))
    return prefix + zlib.crc32(prefix).to_bytes(4, "little") + payload


class Journal:
    """A new file open for appending. Raises `LedgerError` when the disk refuses; nothing is then added.

    `trouble` is what the disk said to the last block, None when it took it.
    """

    def __init__(self, path: Path, head: Head) -> None:
        self.path = path
        self.size = 0
        self.trouble: str | None = None
        self._broken = False
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError as error:
            raise _refused(path, error) from None
        try:
            self.append([head])
        except LedgerError:
            self.discard()
            raise

    def append(self, records: Iterable[Record]) -> None:
        """Write `records` as one block; they are on the disk when this returns."""
        if self._broken:
            raise LedgerError(
                f"the journal {self.path} failed earlier", "Free or repair the disk and restart the localnet"
            )
        block = b"".join(frame(record) for record in records)
        try:
            self._write(block)
            sync_bytes(self._file)
        except OSError as error:
            self._cut_back()
            self.trouble = error.strerror
            raise _refused(self.path, error) from None
        self.size += len(block)
        self.trouble = None

    def _write(self, block: bytes) -> None:
        view = memoryview(block)
        while view:
            view = view[os.write(self._file, view) :]

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._file, self.size)
        except OSError:
            self._broken = True

    def close(self) -> None:
        os.close(self._file)

    def discard(self) -> None:
        """Close a journal that nothing was acknowledged in, and remove it."""
        self.close()
        remove(self.path)


def remove(path: Path) -> None:
    """Delete a file that is of no more use; one that cannot be deleted does no harm."""
    with contextlib.suppress(OSError):
        path.unlink()


def read_records(path: Path, repair: bool) -> Iterator[Record]:
    """The records of `path` in order. With `repair` a last record cut short is dropped and the file shortened to
    match.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _refused(path, error) from None
    position = 0
    while position < len(data):
        payload = _payload_at(path, data, position)
        if payload is None and not repair:
            raise _damaged(path, position)
        if payload is None:
            log.warning("%s: dropped %d bytes of a record that was never finished", path, len(data) - position)
            os.truncate(path, position)
            return
        try:
            yield decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise _damaged(path, position) from None
        position += _HEADER.size + len(payload)


def _payload_at(path: Path, data: bytes, position: int) -> bytes | None:
    """The payload of the record at `position`, or None when the file ends before the record does."""
    start = position + _HEADER.size
    if start > len(data):
        return None
    length, checksum, prefix_checksum = _HEADER.unpack_from(data, position)
    if zlib.crc32(data[position : position + _PREFIX.size]) != prefix_checksum or length > MAX_RECORD_BYTES:
        # After a power cut a file may end in zeros that stand for bytes never written; anything else is damage.
        if any(data[position:]):
            raise _damaged(path, position)
        return None
    payload = data[start : start + length]
    if zlib.crc32(payload) == checksum:
        return payload
    if start + length < len(data):
        raise _damaged(path, position)
    return None


def _damaged(path: Path, position: int) -> LedgerError:
    return LedgerError(
        f"the ledger file {path} is damaged at byte {position}",
        f"Restore the ledger directory from a copy, or start with an empty one: {OPTIONS}",
    )


def _refused(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"the ledger {path} cannot be used: {error.strerror}",
        "Free space in that directory, or check its permissions; the chain is unchanged",
    )
