"""Made-up tokens, for trying out a run before there is data.

Decided: they follow from the sequence's number alone (SHAKE-128 of it), so every platform makes the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from aftermath.data.source import FileRecord, Sequences, check_sequences, check_shape

SEQUENCES = 1 << 32


class DummyTokens:
    """Random tokens out of a vocabulary."""

    def __init__(self, seq_len: int, vocab_size: int) -> None:
        check_shape(4, seq_len)
        self._seq_len, self._vocab_size = seq_len, vocab_size

    @property
    def sequences(self) -> int:
        """More than any run reads."""
        return SEQUENCES

    @property
    def seq_len(self) -> int:
        """Tokens of each."""
        return self._seq_len

    def read(self, indices: Sequence[int]) -> Sequences:
        """Tokens [n, seq_len]. Raises DataError for a negative number."""
        check_sequences(indices)
        rows = [self._sequence(index % SEQUENCES) for index in indices]
        return np.array(rows, dtype=np.int64).reshape(len(rows), self._seq_len)

    def record(self) -> tuple[FileRecord, ...]:
        """There are no files."""
        return ()

    def _sequence(self, index: int) -> Sequences:
        drawn = hashlib.shake_128(index.to_bytes(8, "little")).digest(4 * self._seq_len)
        return np.frombuffer(drawn, "<u4").astype(np.int64) % self._vocab_size
