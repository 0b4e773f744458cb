"""Bytes of a row of files, wherever the files are.

Decided: a store is asked for many spans at once, so that one that is far away can merge and overlap its requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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
