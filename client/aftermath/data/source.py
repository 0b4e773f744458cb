"""The interface of training data: sequences by number (`Source`) and file bytes (`Store`).

A source is a pure function of the run's settings and an index, so all members read the same
tokens. Sequence numbers only grow and wrap around; each pass may have its own order. `read`
blocks, so members call it on a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.base.errors import AftermathError

IGNORED = -100
"""The label of a token that the loss leaves out."""

MOST_FILES = 1 << 16
"""The most files of a data location or a mixture. Opening the data reads the start of each."""

SLOWEST = 32 << 10
"""Bytes per second. A slower server counts as unavailable."""

Sequences = NDArray[np.int64]
"""Tokens [n, seq_len], or tokens and labels [n, 2, seq_len] if only labels are learnt."""


class DataError(AftermathError):
    """The data is missing or does not match the run."""

    code = "data"


class NoData(DataError):
    """The named place on this machine has no token files."""


class WrongTokens(DataError):
    """The files exist, but no member can train on them with the run's settings."""


class SourceUnavailable(DataError):
    """The data's server does not answer now, but may later."""

    code = "data-away"


@dataclass(frozen=True)
class FileRecord:
    """The fingerprint of one file. Members of a run need equal records."""

    name: str
    size: int
    """Bytes."""
    samples: str
    """SHA-256, in hex, of the blocks that `fingerprint.sampled_blocks` chooses."""


class Source(Protocol):
    """Sequences of one length. Labels, if any, travel with the tokens in one array."""

    @property
    def sequences(self) -> int:
        """Return the number of sequences in one pass."""

    @property
    def seq_len(self) -> int:
        """Tokens per sequence."""

    def read(self, indices: Sequence[int]) -> Sequences:
        """Return the sequences with these numbers, which may be any from 0 on.

        All tokens are inside the vocabulary. Raise SourceUnavailable if a retry can help, else
        DataError.
        """

    def record(self) -> tuple[FileRecord, ...]:
        """Return the records of the files, in order, or nothing without files. Raise as `read`
        does.
        """


@dataclass
class DataRequest:
    """The format in which a run reads its data, and the files and addresses that it may open."""

    seq_len: int
    vocab_size: int
    labels: bool = False
    """Whether only labels are learnt."""
    access: RunAccess = TRUSTING
    files: int = 0
    """Number of HTTP files that the location's sources have named so far."""

    def count_files(self, count: int, label: str) -> None:
        """Add to the number of HTTP files. Raise DataError for too many."""
        self.files += count
        if self.files > MOST_FILES:
            raise DataError(
                f"{label} brings the mixture above the limit of {MOST_FILES} files",
                "Remove some sources, or put more tokens into each file",
            )


def check_sequences(indices: Sequence[int]) -> None:
    """Raise DataError for a negative index."""
    if any(index < 0 for index in indices):
        raise DataError(f"sequence index {min(indices)} is negative")


def check_shape(token_bytes: int, seq_len: int) -> None:
    """Raise DataError for an impossible token width or sequence length."""
    if token_bytes not in (2, 4):
        raise DataError(
            f"a token must have 2 or 4 bytes, not {token_bytes}",
            "Set token_size_in_bytes to TwoBytes or FourBytes",
        )
    if seq_len < 2:
        raise DataError(f"a sequence needs at least 2 tokens, not {seq_len}", "Raise max_seq_len")


class Span(NamedTuple):
    """A range of bytes in one file."""

    file: int
    """The index in `Store.files`."""
    start: int
    length: int


# Callers ask for many spans at once, so that a remote store can merge and overlap its requests.
@dataclass(frozen=True)
class StoredFile:
    """One file as it was when the store was opened."""

    name: str
    """The name in errors, without secrets."""
    size: int
    head: bytes
    """The first `formats.HEAD_BYTES` bytes, or all."""

    @property
    def base(self) -> str:
        """Return the last part of the name, which is equal on all machines."""
        return self.name.rsplit("/", 1)[-1]


class Store(Protocol):
    """Files that do not change while they are in use."""

    @property
    def files(self) -> Sequence[StoredFile]:
        """Return the files, in the order of their sequences."""

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """Return the bytes of each span. Spans lie inside their file.

        Raise DataError for a file that changed, SourceUnavailable if a retry can help.
        """
