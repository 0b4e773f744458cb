"""Token files on this machine: one file, or a directory's files sorted by name.

All members of a run need the same files. A parquet file is unpacked first (`parquet`).
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from aftermath.data.formats import HEAD_BYTES, SUFFIXES, check_stated_width, tokenise_options
from aftermath.data.parquet import PARQUET, unpacked_tokens
from aftermath.data.source import DataError, NoData, Span, StoredFile
from aftermath.data.tokens import TokenFiles

MAX_OPEN = 64  # files
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = (*SUFFIXES, PARQUET)
_MEGATRON = b"MMIDIDX\0\0"
_MEGATRON_TYPE = 17  # offset of the type code, after magic and version
_MEGATRON_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}


# Files are read, not mapped: if a mapped file shrinks, access beyond its end kills the process.
class LocalFiles:
    """A store of files on this machine."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        # descriptors by file, the last used one at the end
        self._open: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()
        self._files = [self._open_file(number) for number in range(len(paths))]

    @property
    def files(self) -> Sequence[StoredFile]:
        """Return the files as they were when the store was opened."""
        return self._files

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """Read spans. Raise DataError for a file that shrank or is not readable any more."""
        for number in {span.file for span in spans}:
            if (size := self._size(number)) < self._files[number].size:
                self._forget(number)
                raise DataError(
                    f"{self._paths[number]} shrank from {self._files[number].size} bytes to {size} while in use",
                    "Restore the file and restart",
                )
        return [self._bytes(*span) for span in spans]

    def _open_file(self, number: int) -> StoredFile:
        size = self._size(number)
        return StoredFile(
            str(self._paths[number]), size, self._bytes(number, 0, min(size, HEAD_BYTES))
        )

    def _size(self, number: int) -> int:
        try:
            return self._paths[number].stat().st_size
        except OSError as error:
            raise _unreadable(self._paths[number], error) from None

    def _bytes(self, number: int, start: int, length: int) -> bytes:
        try:
            with self._lock:
                descriptor = self._descriptor(number)
                os.lseek(descriptor, start, os.SEEK_SET)
                data = os.read(descriptor, length)
        except OSError as error:
            raise _unreadable(self._paths[number], error) from None
        if len(data) < length:
            raise DataError(
                f"{self._paths[number]} ends before byte {start + length}: it shrank while in use",
                "Restore the file and restart",
            )
        return data

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            if len(self._open) >= MAX_OPEN:
                os.close(self._open.popitem(last=False)[1])
            self._open[number] = os.open(self._paths[number], _OPEN_FLAGS)
        self._open.move_to_end(number)
        return self._open[number]

    def _forget(self, number: int) -> None:
        with self._lock:
            if number in self._open:
                os.close(self._open.pop(number))

    def __del__(self) -> None:
        for descriptor in getattr(self, "_open", {}).values():
            os.close(descriptor)


def open_tokens(
    path: Path | str,
    token_bytes: int,
    seq_len: int,
    *,
    vocab_size: int,
    shuffle_seed: bytes | None = None,
) -> TokenFiles:
    """Return the sequences of a token file or of the token files in a directory.

    `token_bytes` is 2 or 4. A seed of at most 64 bytes shuffles each pass. Raise DataError with a
    fix if the data is missing, empty, truncated or of another format.
    """
    path = Path(path).expanduser().absolute()
    files = token_files(path)
    for file in files:
        stated = _stated_width(file)
        if stated is not None:
            check_stated_width(str(file), stated, token_bytes)
    store = LocalFiles(
        [unpacked_tokens(file, token_bytes) if file.suffix == PARQUET else file for file in files]
    )
    return TokenFiles(
        store, str(path), token_bytes, seq_len, vocab_size=vocab_size, shuffle_seed=shuffle_seed
    )


def token_files(path: Path) -> list[Path]:
    """Return a file, or the sorted token files of a folder. Raise DataError if there is none."""
    make = "Create token files from text: aftermath-solana data tokenize"
    into = f"{make} --input TEXT --output {shlex.quote(str(path))}"
    into += ". Or create those of a run's config file: aftermath-solana run-files FILE"
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise NoData(f"there is no token data at {path}", into)
        inside = list(path.iterdir())
        files = sorted(file for file in inside if file.is_file())
    except OSError as error:
        raise _unreadable(path, error) from None
    tokens = [file for file in files if file.suffix in _KINDS]
    if not tokens:
        suffixes = sorted({file.suffix for file in files if file.suffix})
        also = f"; its files end in {', '.join(suffixes[:5])}" if suffixes else ""
        fix = f"{make} {tokenise_options(path)}" if inside else into
        raise NoData(f"{path} has no token files ({', '.join(_KINDS)}){also}", fix)
    return tokens


def _unreadable(path: Path, error: OSError) -> DataError:
    if isinstance(error, PermissionError):
        mode = "rx" if path.is_dir() else "r"
        return DataError(
            f"cannot read {path}: {error.strerror}",
            f"Allow this user to read it: chmod u+{mode} {path}",
        )
    return DataError(f"cannot read {path}: {error.strerror}", "Restore the file and restart")


def _stated_width(path: Path) -> int | None:
    """Return the bytes per token that a file next to the tokens states, or None.

    datatrove writes NAME.metadata with the first line TOKENIZER|WIDTH. Megatron writes NAME.idx
    next to NAME.bin.
    """
    metadata = _beginning(path.with_name(f"{path.name}.metadata"))
    stated = re.match(rb"[^\n|]*\|(\d{1,2})\r?(?:\n|$)", metadata)
    if stated is not None:
        return int(stated[1])
    index = _beginning(path.with_suffix(".idx"))
    if path.suffix == ".bin" and index.startswith(_MEGATRON) and len(index) > _MEGATRON_TYPE:
        return _MEGATRON_WIDTHS.get(index[_MEGATRON_TYPE])
    return None


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""
