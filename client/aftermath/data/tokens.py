"""The sequences of a row of token files, wherever they are kept.

Decided
- A sequence never straddles two files, and a file's last, partial sequence is not used.
- Every pass over a shuffled set has its own order (`order`).
- Every token is checked against the vocabulary when it is read; files are never scanned as a whole.
- The beginning of every file, and the blocks by which it is marked, are looked at for what no tokenizer writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.data.fingerprint import records_of, sampled_blocks
from aftermath.data.formats import Layout, check_not_only_zeros, check_width_and_order, layout_of
from aftermath.data.shuffle import Order
from aftermath.data.source import FileRecord, Sequences, Span, Store, WrongTokens, check_sequences, check_shape


class TokenFiles:
    """The sequences of one set of token files."""

    def __init__(
        self,
        store: Store,
        place: str,
        token_bytes: int,
        seq_len: int,
        *,
        vocab_size: int,
        shuffle_seed: bytes | None = None,
    ) -> None:
        """`place` is how errors call the whole; every pass is shuffled when a seed (at most 64 bytes) is given.

        Raises DataError, naming the file and what to do, when a file is empty, truncated or of another kind.
        """
        check_shape(token_bytes, seq_len)
        self._store, self._vocab_size = store, vocab_size
        self._token_bytes, self._seq_len = token_bytes, seq_len
        self._layouts = [layout_of(file.name, file.size, file.head, token_bytes) for file in store.files]
        for file, layout in zip(store.files, self._layouts, strict=True):
            check_width_and_order(file.name, self._tokens(layout, Span(0, 0, len(file.head)), file.head))
        self._ends = list(accumulate(layout.tokens // seq_len for layout in self._layouts))
        if not self._ends[-1]:
            raise WrongTokens(
                f"{place} holds no whole sequence: a sequence takes {seq_len} tokens, and its longest file "
                f"has {max(layout.tokens for layout in self._layouts)}",
                "Add data, or lower max_seq_len",
            )
        self._order = Order(self._ends[-1], shuffle_seed) if shuffle_seed is not None else None

    @property
    def sequences(self) -> int:
        """Sequences of one pass."""
        return self._ends[-1]

    @property
    def seq_len(self) -> int:
        """Tokens of each."""
        return self._seq_len

    @property
    def tokens(self) -> int:
        """Tokens of all files, those of partial sequences as well."""
        return sum(layout.tokens for layout in self._layouts)

    def read(self, indices: Sequence[int]) -> Sequences:
        """Tokens [n, seq_len]. Raises DataError if a file changed or holds a strange token, SourceAway."""
        check_sequences(indices)
        spans = [self._span(index) for index in indices]
        raw = np.frombuffer(b"".join(self._store.read(spans)), dtype=f"<u{self._token_bytes}")
        out = raw.astype(np.int64).reshape(len(spans), self._seq_len)
        if len(raw) and raw.max() >= self._vocab_size:
            self._refuse(spans, out)
        return out

    def record(self) -> tuple[FileRecord, ...]:
        """What marks its files. Raises DataError for tokens that no tokenizer writes, or outside of the vocabulary."""
        blocks = sampled_blocks(self._store)
        by_file: dict[int, list[NDArray[Any]]] = {}
        for span, data in blocks:
            tokens = self._tokens(self._layouts[span.file], span, data)
            by_file.setdefault(span.file, []).append(tokens)
            name = self._store.files[span.file].name
            check_width_and_order(name, tokens)
            if len(tokens) and tokens.max() >= self._vocab_size:
                raise self._beyond(name, int(tokens.max()), "")
        for number, parts in by_file.items():
            check_not_only_zeros(self._store.files[number].name, np.concatenate(parts))
        return records_of(self._store, blocks)

    def _tokens(self, layout: Layout, span: Span, data: bytes) -> NDArray[Any]:
        """Return the whole tokens in a span's bytes, from an even position in the file on."""
        end = min(span.start + span.length, layout.start + layout.tokens * self._token_bytes)
        pair = 2 * self._token_bytes
        before = max(0, span.start - layout.start)
        start = layout.start + -(-before // pair) * pair
        count = max(0, end - start) // self._token_bytes
        return np.frombuffer(data, f"<u{self._token_bytes}", count, max(0, start - span.start) if count else 0)

    def _span(self, index: int) -> Span:
        turn, place = divmod(index, self.sequences)
        if self._order is not None:
            place = self._order.at(place, turn)
        which = bisect_right(self._ends, place)
        layout, length = self._layouts[which], self._seq_len * self._token_bytes
        inside = place - (self._ends[which - 1] if which else 0)
        return Span(which, layout.start + inside * length, length)

    def _refuse(self, spans: Sequence[Span], out: Sequences) -> None:
        row = int((out.max(axis=1) >= self._vocab_size).argmax())
        file, start = spans[row].file, spans[row].start
        position = (start - self._layouts[file].start) // self._token_bytes
        raise self._beyond(self._store.files[file].name, out[row].max(), f" at or after position {position}")

    def _beyond(self, name: str, token: int, where: str) -> WrongTokens:
        return WrongTokens(
            f"{name}: a token {token}{where} is outside the vocabulary of {self._vocab_size}",
            "Tokenise the data with the model's own tokenizer.json, and check token_size_in_bytes",
        )
