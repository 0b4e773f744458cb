"""The sequences of a set of token files, in any store.

A sequence never spans two files, and a partial sequence at the end of a file is not used. Each
token that is read is checked against the vocabulary; files are never scanned whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.data.fingerprint import records_from_blocks, sampled_blocks
from aftermath.data.formats import Layout, check_not_only_zeros, check_width_and_order, layout_of
from aftermath.data.shuffle import ShuffledOrder
from aftermath.data.source import (
    FileRecord,
    Sequences,
    Span,
    Store,
    WrongTokens,
    check_sequences,
    check_shape,
)


class TokenFiles:
    """The sequences of one set of token files."""

    def __init__(
        self,
        store: Store,
        name: str,
        token_bytes: int,
        seq_len: int,
        *,
        vocab_size: int,
        shuffle_seed: bytes | None = None,
    ) -> None:
        """Open the files of a store. `name` stands for all of them in errors.

        A seed of at most 64 bytes shuffles each pass. Raise DataError with a fix if a file is
        empty, truncated or of another format.
        """
        check_shape(token_bytes, seq_len)
        self._store = store
        self._vocab_size = vocab_size
        self._token_bytes = token_bytes
        self._seq_len = seq_len
        self._layouts = [
            layout_of(file.name, file.size, file.head, token_bytes) for file in store.files
        ]
        for file, layout in zip(store.files, self._layouts, strict=True):
            check_width_and_order(
                file.name, self._tokens(layout, Span(0, 0, len(file.head)), file.head)
            )
        self._ends = list(accumulate(layout.tokens // seq_len for layout in self._layouts))
        if not self._ends[-1]:
            raise WrongTokens(
                f"{name} has no complete sequence of {seq_len} tokens: its longest file has only "
                f"{max(layout.tokens for layout in self._layouts)}",
                "Add data, or lower max_seq_len",
            )
        self._order = (
            ShuffledOrder(self._ends[-1], shuffle_seed) if shuffle_seed is not None else None
        )

    @property
    def sequences(self) -> int:
        """Sequences of one pass."""
        return self._ends[-1]

    @property
    def seq_len(self) -> int:
        """Tokens per sequence."""
        return self._seq_len

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all files, also in partial sequences."""
        return sum(layout.tokens for layout in self._layouts)

    def read(self, indices: Sequence[int]) -> Sequences:
        """Return tokens [n, seq_len].

        Raise DataError if a file changed or has a token outside the vocabulary, SourceUnavailable
        if a retry can help.
        """
        check_sequences(indices)
        spans = [self._span(index) for index in indices]
        raw = np.frombuffer(b"".join(self._store.read(spans)), dtype=f"<u{self._token_bytes}")
        out = raw.astype(np.int64).reshape(len(spans), self._seq_len)
        if len(raw) and raw.max() >= self._vocab_size:
            self._refuse(spans, out)
        return out

    def record(self) -> tuple[FileRecord, ...]:
        """Return the records of the files.

        Raise DataError for tokens of a wrong width or byte order, or outside the vocabulary.
        """
        blocks = sampled_blocks(self._store)
        by_file: dict[int, list[NDArray[Any]]] = {}
        for span, data in blocks:
            tokens = self._tokens(self._layouts[span.file], span, data)
            by_file.setdefault(span.file, []).append(tokens)
            name = self._store.files[span.file].name
            check_width_and_order(name, tokens)
            if len(tokens) and tokens.max() >= self._vocab_size:
                raise self._outside_vocabulary(name, int(tokens.max()), "")
        for number, parts in by_file.items():
            check_not_only_zeros(self._store.files[number].name, np.concatenate(parts))
        return records_from_blocks(self._store, blocks)

    def _tokens(self, layout: Layout, span: Span, data: bytes) -> NDArray[Any]:
        """Return the complete tokens in a span's bytes, from an even position of the file."""
        end = min(span.start + span.length, layout.start + layout.tokens * self._token_bytes)
        pair = 2 * self._token_bytes
        before = max(0, span.start - layout.start)
        start = layout.start + -(-before // pair) * pair
        count = max(0, end - start) // self._token_bytes
        return np.frombuffer(
            data, f"<u{self._token_bytes}", count, max(0, start - span.start) if count else 0
        )

    def _span(self, index: int) -> Span:
        turn, position = divmod(index, self.sequences)
        if self._order is not None:
            position = self._order.at(position, turn)
        which = bisect_right(self._ends, position)
        layout = self._layouts[which]
        length = self._seq_len * self._token_bytes
        inside = position - (self._ends[which - 1] if which else 0)
        return Span(which, layout.start + inside * length, length)

    def _refuse(self, spans: Sequence[Span], out: Sequences) -> None:
        row = int((out.max(axis=1) >= self._vocab_size).argmax())
        file = spans[row].file
        start = spans[row].start
        position = (start - self._layouts[file].start) // self._token_bytes
        raise self._outside_vocabulary(
            self._store.files[file].name, out[row].max(), f" at or after position {position}"
        )

    def _outside_vocabulary(self, name: str, token: int, where: str) -> WrongTokens:
        return WrongTokens(
            f"{name}: token {token}{where} is outside the vocabulary of {self._vocab_size}",
            "Tokenise the data with the model's tokenizer.json, and check token_size_in_bytes",
        )
