"""Made-up tokens, to try a run without data. Every platform computes the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from aftermath.data.source import FileRecord, Sequences, check_sequences, check_shape

SEQUENCES = 1 << 32


class DummyTokens:
    """Random tokens of a vocabulary: the SHAKE-128 of the sequence's number."""

    def __init__(self, seq_len: int, vocab_size: int) -> None:
        check_shape(4, seq_len)
        self._seq_len = seq_len
        self._vocab_size = vocab_size

    @property
    def sequences(self) -> int:
        """Return a number that no run reaches."""
        return SEQUENCES

    @property
    def seq_len(self) -> int:
        """Tokens per sequence."""
        return self._seq_len

    def read(self, indices: Sequence[int]) -> Sequences:
        """Return tokens [n, seq_len]. Raise DataError for a negative number."""
        check_sequences(indices)
        rows = [self._sequence(index % SEQUENCES) for index in indices]
        return np.array(rows, dtype=np.int64).reshape(len(rows), self._seq_len)

    def record(self) -> tuple[FileRecord, ...]:
        """Return nothing: there are no files."""
        return ()

    def _sequence(self, index: int) -> Sequences:
        random_bytes = hashlib.shake_128(index.to_bytes(8, "little")).digest(4 * self._seq_len)
        return np.frombuffer(random_bytes, "<u4").astype(np.int64) % self._vocab_size
