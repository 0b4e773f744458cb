"""What every place of training data offers: sequences by number, behind one Protocol.

Decided
- A source is a pure function of the run's settings and an index: every member gets the same tokens for a sequence.
- Sequence numbers come from the chain and only grow: they wrap, and every pass may have its own order.
- `read` blocks. Members call it on a thread of its own, as soon as a round tells them their share.
- Labels travel with the tokens, in one array: a share is cut and split as one, whatever it holds.
- `SourceAway` passes by itself (a server that does not answer); any other `DataError` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aftermath.base.errors import AftermathError

IGNORED = -100
"""The label of a token that is not to be learnt."""

SLOWEST = 32 << 10
"""Bytes per second, below which a server's answer is given up."""

Sequences = NDArray[np.int64]
"""Tokens [n, seq_len], or tokens and labels [n, 2, seq_len] where only labels are learnt."""


class DataError(AftermathError):
    """The data is missing or is not what the run says it is."""

    code = "data"


class NoData(DataError):
    """There are no token files where they should be on this machine."""


class WrongTokens(DataError):
    """The files exist, but no member can train on them with the run's settings."""


class SourceAway(DataError):
    """The data's server does not answer now. It may later."""

    code = "data-away"


@dataclass(frozen=True)
class FileRecord:
    """What marks one file: members of a run have files with equal records."""

    name: str
    size: int
    """Bytes."""
    samples: str
    """SHA-256, in hex, of the blocks that `fingerprint.sampled` chooses."""


class Source(Protocol):
    """Sequences of one length, all of whose tokens are inside the model's vocabulary."""

    @property
    def sequences(self) -> int:
        """How many different ones there are: the length of one pass."""

    @property
    def seq_len(self) -> int:
        """Tokens of each."""

    def read(self, indices: Sequence[int]) -> Sequences:
        """The sequences of these numbers, which may be any from 0 on.

        Raises SourceAway if that can be tried again later, else DataError.
        """

    def record(self) -> tuple[FileRecord, ...]:
        """What marks the files behind it, in their order; nothing where there are none. Raises as `read` does."""


def check_sequences(indices: Sequence[int]) -> None:
    """Raises DataError for a number that no sequence has."""
    if any(index < 0 for index in indices):
        raise DataError(f"sequence index {min(indices)} is negative")


def check_shape(token_bytes: int, seq_len: int) -> None:
    """Raises DataError for tokens or sequences that no run has."""
    if token_bytes not in (2, 4):
        raise DataError(
            f"tokens take 2 or 4 bytes, not {token_bytes}", "Set token_size_in_bytes to TwoBytes or FourBytes"
        )
    if seq_len < 2:
        raise DataError(f"a sequence needs at least 2 tokens, not {seq_len}", "Raise max_seq_len")


class Span(NamedTuple):
    """Some bytes of one file."""

    file: int
    """Its place in `Store.files`."""
    start: int
    length: int


@dataclass(frozen=True)
class File:
    """One file as it was when the store was opened."""

    name: str
    """How errors call it, without anything secret."""
    size: int
    head: bytes
    """Its first bytes: `formats.HEAD_BYTES`, or all."""

    @property
    def base(self) -> str:
        """The last part of its name, which it has wherever it is kept."""
        return self.name.rsplit("/", 1)[-1]


class Store(Protocol):
    """Files that do not change while they are in use."""

    @property
    def files(self) -> Sequence[File]:
        """In the order of the sequences."""

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """The bytes of every span, which lies inside its file.

        Raises DataError for a file that is not what it was, SourceAway if it may be had later.
        """
