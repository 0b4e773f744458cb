"""Parquet files of token lists, unpacked once into files that can be read anywhere.

Decided
- Where a row's list lies in a parquet file is known only after all rows before it. So a file is unpacked whole, a few
  rows at a time, into this user's cache, and what was unpacked is what is read and marked: members with equal columns
  have equal records, for any writer of the files.
- What was unpacked is kept under a hash of the file's path, size and times of change: a changed file is unpacked again.
  Of several processes one unpacks, and the others wait for it.
- pyarrow, the format's own library, is an extra.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from aftermath.base.files import cache_directory, replacing
from aftermath.base.locks import alone_in
from aftermath.data.source import DataError

PARQUET = ".parquet"
TOKEN_COLUMNS = ("input_ids", "tokens", "inputs")
"""The names that a column of tokens may have; the first that a file has is read."""
_ROWS = 1024  # read at a time
_LABELS = ("labels",)

Column = Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""The numbers of some rows, one after the other, and how many each row has."""


def unpacked_tokens(path: Path, token_bytes: int) -> Path:
    """The raw tokens of all rows of a parquet file, in their order, as `token_bytes` each.

    Raises DataError, naming the file and what to do.
    """

    def write(stream: BinaryIO) -> None:
        for values, _ in _column(path, TOKEN_COLUMNS):
            if len(values) and (values.min() < 0 or int(values.max()) >> 8 * token_bytes):
                raise DataError(
                    f"{path} has numbers from {values.min()} to {values.max()} for tokens of {token_bytes} bytes",
                    'Check its column of tokens, and set token_size_in_bytes = "FourBytes" for a large vocabulary',
                )
            stream.write(values.astype(f"<u{token_bytes}").tobytes())

    return _kept(path, f"{token_bytes}.bin", write)


def unpacked_rows(path: Path, seq_len: int, *, labels: bool) -> list[Path]:
    """NumPy files int32 [rows, seq_len] of a parquet file's tokens and, if asked for, of its labels.

    Raises DataError, naming the file and what to do.
    """
    kinds = {"inputs": TOKEN_COLUMNS} | ({"labels": _LABELS} if labels else {})
    return [_kept(path, f"{seq_len}.{kind}.npy", partial(_write_rows, path, kinds[kind], seq_len)) for kind in kinds]


def _write_rows(path: Path, names: Sequence[str], seq_len: int, stream: BinaryIO) -> None:
    header = {"descr": "<i4", "fortran_order": False, "shape": (_open(path).metadata.num_rows, seq_len)}
    np.lib.format.write_array_header_1_0(stream, header)
    limits = np.iinfo(np.int32)
    for values, lengths in _column(path, names):
        if (other := lengths[lengths != seq_len]).size:
            raise DataError(
                f"{path} has a row of {other[0]} numbers, and rows of the run have {seq_len} tokens",
                "Cut and pad rows to max_seq_len, with labels of -100 for padding",
            )
        if len(values) and (values.min() < limits.min or values.max() > limits.max):
            raise DataError(f"{path} has numbers that no token is", "Check its columns")
        stream.write(values.astype("<i4").tobytes())


def _column(path: Path, names: Sequence[str]) -> Column:
    """The first column of these names, some rows at a time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    advice = f"Name a column of lists of whole numbers {' or '.join(names)}"
    with _readable(path):
        file = _open(path)
        held = file.schema_arrow.names
        name = next((name for name in names if name in held), None)
        if name is None:
            raise DataError(f"{path} has the columns {', '.join(held[:8])}, and none for {names[0]}", advice)
        kind = file.schema_arrow.field(name).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise DataError(f"{path} has {kind} in the column {name}, and not lists", advice)
        for batch in file.iter_batches(_ROWS, columns=[name]):
            lengths = pc.list_value_length(batch.column(0))
            numbers = batch.column(0).flatten()
            if lengths.null_count or numbers.null_count:
                raise DataError(f"{path} has rows or numbers that are missing in the column {name}", advice)
            values = numbers.to_numpy(zero_copy_only=False)
            if values.dtype.kind not in "ui":
                raise DataError(f"{path} has {values.dtype} in the lists of the column {name}", advice)
            yield values, lengths.to_numpy(zero_copy_only=False)


def _open(path: Path) -> Any:
    import pyarrow.parquet as pq

    with _readable(path):
        return pq.ParquetFile(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What pyarrow raises in the block is a DataError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:  # the last: names that are no text
        reason = str(error).partition("\n")[0][:200]
        raise DataError(f"{path} cannot be read as parquet: {reason}", "Write or copy it again") from None


def _kept(path: Path, kind: str, write: Callable[[BinaryIO], None]) -> Path:
    """The file of this kind that was unpacked of the file as it is now, unpacked if need be."""
    if find_spec("pyarrow") is None:
        raise DataError(
            f"{path} is a parquet file, and pyarrow is not installed", "pip install 'aftermath[parquet]', then restart"
        )
    try:
        now = path.stat()
        which = f"{path}\0{now.st_size}\0{now.st_mtime_ns}\0{now.st_ctime_ns}"
        mark = hashlib.sha256(which.encode()).hexdigest()[:32]
        folder = cache_directory("unpacked") / mark
        target = folder / f"{path.name}.{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder):
            if not target.is_file():
                with replacing(target) as stream:
                    write(stream)
    except OSError as error:
        raise DataError(
            f"cannot unpack {path} into {cache_directory('unpacked')}: {error.strerror}",
            "Make room there, or set XDG_CACHE_HOME to a folder that has some",
        ) from None
    return target
