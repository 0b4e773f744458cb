"""Token files on this machine: raw little-endian u16 or u32 tokens, no header, read through memory maps.

Decided
- A directory's `.bin` and `.ds` files, sorted by name, are one row of sequences; a sequence never straddles two files
  and a file's last, partial sequence is not used. All members of a run must have the same files.
- Sequence indices come from the chain and only grow: they wrap, and every pass over a shuffled set has its own order.
- Every token is checked against the vocabulary when it is read; files are never scanned as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aftermath.base.errors import AftermathError
from aftermath.data.order import shuffled

SUFFIXES = (".bin", ".ds")


class DataError(AftermathError):
    """Token files are missing or are not what the run says they are."""


@dataclass(frozen=True)
class _File:
    path: Path
    size: int  # bytes when opened
    tokens: NDArray[np.unsignedinteger]
    sequences: int


class TokenFiles:
    """The sequences of one set of token files; make it with `open_tokens`."""

    def __init__(self, files: Sequence[_File], seq_len: int, vocab_size: int, shuffle_seed: bytes | None) -> None:
        self._files, self._vocab_size, self._seed = files, vocab_size, shuffle_seed
        self._ends = list(accumulate(file.sequences for file in files))
        self.seq_len = seq_len
        self.sequences = self._ends[-1]

    def read(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Tokens [n, seq_len] of these sequences, int64. Raises DataError if a file shrank or holds a strange token."""
        out = np.empty((len(indices), self.seq_len), dtype=np.int64)
        for row, index in enumerate(indices):
            out[row] = self._sequence(index)
        return out

    def _sequence(self, index: int) -> NDArray[np.unsignedinteger]:
        if index < 0:
            raise DataError(f"sequence index {index} is negative")
        turn, place = divmod(index, self.sequences)
        if self._seed is not None:
            place = shuffled(place, self.sequences, self._seed, turn)
        which = bisect_right(self._ends, place)
        file = self._files[which]
        if _size(file.path) < file.size:  # reading a map beyond a shrunken file's end would kill the process
            raise DataError(f"{file.path} shrank from {file.size} bytes while in use", "restore the file and restart")
        start = (place - self._ends[which] + file.sequences) * self.seq_len
        tokens = file.tokens[start : start + self.seq_len]
        largest = int(tokens.max())
        if largest >= self._vocab_size:
            raise DataError(
                f"{file.path}: a token {largest} at or after position {start} is outside the vocabulary of "
                f"{self._vocab_size}",
                "tokenise the data with the model's own tokenizer.json, and check token_size_in_bytes",
            )
        return tokens


def open_tokens(
    path: Path | str, token_bytes: int, seq_len: int, *, vocab_size: int, shuffle_seed: bytes | None = None
) -> TokenFiles:
    """The sequences of `seq_len` tokens in a token file or in the token files of a directory.

    `token_bytes` is 2 or 4; every pass over the data is shuffled when a seed (at most 64 bytes) is given.
    Raises DataError, naming the file and what to do, when the data is missing, empty or truncated.
    """
    if token_bytes not in (2, 4):
        raise DataError(
            f"tokens take 2 or 4 bytes, not {token_bytes}", "set token_size_in_bytes to TwoBytes or FourBytes"
        )
    if seq_len < 2:
        raise DataError(f"a sequence needs at least 2 tokens, not {seq_len}", "raise max_seq_len")
    path = Path(path).expanduser().absolute()
    files = [_open(file, token_bytes, seq_len) for file in _token_files(path)]
    if not any(file.sequences for file in files):
        raise DataError(
            f"{path} holds no whole sequence: a sequence takes {seq_len} tokens, and its longest file "
            f"has {max(f.tokens.size for f in files)}",
            "add data, or lower max_seq_len",
        )
    return TokenFiles(files, seq_len, vocab_size, shuffle_seed)


def _token_files(path: Path) -> list[Path]:
    advice = f"make token files with: python scripts/tokenise.py --output {path}"
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise DataError(f"there is no token data at {path}", advice)
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if not found:
        raise DataError(f"{path} holds no token files ({' or '.join(SUFFIXES)})", advice)
    return found


def _open(path: Path, token_bytes: int, seq_len: int) -> _File:
    size = _size(path)
    if size % token_bytes:
        raise DataError(
            f"{path} is truncated: its size of {size} is no multiple of the {token_bytes} bytes of a token",
            "copy or tokenise the file again",
        )
    if size == 0:
        raise DataError(f"{path} is empty", "remove it, or copy or tokenise it again")
    try:
        tokens = np.memmap(path, dtype=f"<u{token_bytes}", mode="r")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    return _File(path, size, tokens, tokens.size // seq_len)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "restore the file and restart") from None
