"""A data source: sequences that count up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from aftermath.config.data_sources import DataSource
from aftermath.data.source import (
    DataRequest,
    FileRecord,
    Sequences,
    Source,
    check_sequences,
    check_shape,
)


class CountingData(DataSource):
    """Tokens that count up, each sequence from its own number."""

    step: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="Difference of two neighbouring tokens."
    )

    def open(self, request: DataRequest) -> Source:
        return CountingTokens(self.step, request.seq_len, request.vocab_size)


class CountingTokens:
    """Sequence i has the tokens i, i + step, i + 2 step, ... modulo the vocabulary."""

    sequences = 1 << 20

    def __init__(self, step: int, seq_len: int, vocab_size: int) -> None:
        check_shape(4, seq_len)
        self.seq_len = seq_len
        self._vocab_size = vocab_size
        self._tokens = step * np.arange(seq_len, dtype=np.int64)

    def read(self, indices: Sequence[int]) -> Sequences:
        check_sequences(indices)
        first = np.array(indices, dtype=np.int64)[:, None] % self.sequences
        return (first + self._tokens) % self._vocab_size

    def record(self) -> tuple[FileRecord, ...]:
        return ()
