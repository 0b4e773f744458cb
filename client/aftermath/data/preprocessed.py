"""Rows of a fixed length with labels, for finetuning: a folder of NumPy arrays or parquet files.

`NAME.inputs.npy` holds token ids [rows, seq_len], and `NAME.labels.npy` the labels of the same
shape, with -100 where nothing is learnt. `NAME.parquet` has both in columns of lists.
Rows are read in order, pass after pass: shuffle them when you write the arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from aftermath.data.fingerprint import file_records
from aftermath.data.formats import Array, array_of
from aftermath.data.local import LocalFiles
from aftermath.data.parquet import PARQUET, unpacked_rows
from aftermath.data.source import (
    IGNORED,
    DataError,
    FileRecord,
    NoData,
    Sequences,
    Span,
    WrongTokens,
    check_sequences,
    check_shape,
)

INPUTS = ".inputs.npy"
LABELS = ".labels.npy"


# A label stands at its own token's position; the network predicts it from the tokens before.
class PreprocessedRows:
    """The rows of a folder. Each row has `seq_len` tokens, with or without labels."""

    def __init__(self, folder: Path | str, seq_len: int, vocab_size: int, *, labels: bool) -> None:
        """Open the files. Raise DataError with a fix."""
        check_shape(4, seq_len)
        self._seq_len = seq_len
        self._vocab_size = vocab_size
        self._labelled = labels
        input_files, labelled = _arrays(
            Path(folder).expanduser().absolute(), seq_len, labels=labels
        )
        self._store = LocalFiles([*input_files, *labelled])
        self._arrays = [array_of(file.name, file.size, file.head) for file in self._store.files]
        for file, array in zip(self._store.files, self._arrays, strict=True):
            if len(array.shape) != 2 or array.shape[1] != seq_len:
                raise WrongTokens(
                    f"{file.name} has the shape {array.shape}, but the run expects rows of {seq_len} tokens",
                    "Cut or pad rows to max_seq_len, with labels of -100 for padding",
                )
        self._files = len(input_files)
        for number in range(len(labelled)):
            if self._arrays[number].shape != self._arrays[self._files + number].shape:
                raise DataError(
                    f"{labelled[number]} and {input_files[number].name} have different shapes",
                    "Write both files again",
                )
        self._ends = list(accumulate(array.shape[0] for array in self._arrays[: self._files]))
        if not self._ends[-1]:
            raise DataError(f"{folder} has no rows", "Add rows")

    @property
    def sequences(self) -> int:
        """Rows of one pass."""
        return self._ends[-1]

    @property
    def seq_len(self) -> int:
        """Tokens per row."""
        return self._seq_len

    def read(self, indices: Sequence[int]) -> Sequences:
        """Return tokens [n, seq_len], or tokens and labels [n, 2, seq_len]. Raise DataError."""
        check_sequences(indices)
        tokens = self._rows(indices, 0, least=0)
        if not self._labelled:
            return tokens
        return np.stack([tokens, self._rows(indices, self._files, least=IGNORED)], axis=1)

    def record(self) -> tuple[FileRecord, ...]:
        """Return the records of the files."""
        return file_records(self._store)

    def _rows(self, indices: Sequence[int], first: int, *, least: int) -> Sequences:
        """Return int64 [n, seq_len] of the inputs (`first` 0) or the labels. `least`: the one
        negative value that a row may hold.
        """
        spans = [self._span(index, first) for index in indices]
        out = np.empty((len(spans), self._seq_len), np.int64)
        for row, (span, data) in enumerate(zip(spans, self._store.read(spans), strict=True)):
            out[row] = np.frombuffer(data, self._arrays[span.file].dtype)
            outside = (out[row] >= self._vocab_size) | ((out[row] < 0) & (out[row] != least))
            if outside.any():
                raise DataError(
                    f"{self._store.files[span.file].name}: token {out[row][outside][0]} is outside the vocabulary "
                    f"of {self._vocab_size}",
                    "Tokenise the data with the model's tokenizer.json; only labels may also be -100",
                )
        return out

    def _span(self, index: int, first: int) -> Span:
        place = index % self.sequences
        which = bisect_right(self._ends, place)
        inside = place - (self._ends[which - 1] if which else 0)
        array: Array = self._arrays[first + which]
        length = self._seq_len * array.dtype.itemsize
        return Span(first + which, array.start + inside * length, length)


def _arrays(folder: Path, seq_len: int, *, labels: bool) -> tuple[list[Path], list[Path]]:
    """Return the files of inputs and, with `labels`, those of labels in the same order."""
    advice = f"Write NAME{INPUTS} and NAME{LABELS} there, as in docs/models.md#finetuning"
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except FileNotFoundError:
        raise NoData(f"there is no folder {folder}", advice) from None
    except OSError as error:
        fix = (
            f"Allow this user to read it: chmod u+rx {folder}"
            if isinstance(error, PermissionError)
            else advice
        )
        raise DataError(f"cannot read the folder {folder}: {error.strerror}", fix) from None
    if inputs := [path for path in files if path.name.endswith(INPUTS)]:
        labelled = (
            [path.with_name(path.name.removesuffix(INPUTS) + LABELS) for path in inputs]
            if labels
            else []
        )
        if missing := [path for path in labelled if not path.is_file()]:
            raise DataError(
                f"there are no labels at {missing[0]}",
                'Write them, or use data_type = "Pretraining"',
            )
        return inputs, labelled
    pairs = [
        unpacked_rows(path, seq_len, labels=labels) for path in files if path.suffix == PARQUET
    ]
    if not pairs:
        raise NoData(f"{folder} has neither files named *{INPUTS} nor parquet files", advice)
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs if labels]
