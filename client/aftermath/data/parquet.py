"""Parquet files of token lists, unpacked once into this user's cache. Needs the extra `parquet`.

Readers and fingerprints use the unpacked file, so equal columns give equal records whatever program
wrote the parquet file.
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
"""Possible names of the column of tokens. The first one in the file is read."""
_ROWS = 1024  # read together
_LABELS = ("labels",)

Column = Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""The values of some rows, joined, and the length of each row."""


def unpacked_tokens(path: Path, token_bytes: int) -> Path:
    """Return a file of the raw tokens of all rows, in order, `token_bytes` each.

    Raise DataError with a fix.
    """

    def write(stream: BinaryIO) -> None:
        for values, _ in _column(path, TOKEN_COLUMNS):
            if len(values) and (values.min() < 0 or int(values.max()) >> 8 * token_bytes):
                raise DataError(
                    f"{path} has numbers from {values.min()} to {values.max()} for tokens of {token_bytes} bytes",
                    'Check the token column, and set token_size_in_bytes = "FourBytes" for a large vocabulary',
                )
            stream.write(values.astype(f"<u{token_bytes}").tobytes())

    return _unpack_once(path, f"{token_bytes}.bin", write)


def unpacked_rows(path: Path, seq_len: int, *, labels: bool) -> list[Path]:
    """Return NumPy files int32 [rows, seq_len] of the tokens and, with `labels`, of the labels.

    Raise DataError with a fix.
    """
    kinds = {"inputs": TOKEN_COLUMNS} | ({"labels": _LABELS} if labels else {})
    return [
        _unpack_once(
            path, f"{seq_len}.{kind}.npy", partial(_write_rows, path, kinds[kind], seq_len)
        )
        for kind in kinds
    ]


def _write_rows(path: Path, names: Sequence[str], seq_len: int, stream: BinaryIO) -> None:
    """Write the rows of a column as a NumPy file."""
    header = {
        "descr": "<i4",
        "fortran_order": False,
        "shape": (_open(path).metadata.num_rows, seq_len),
    }
    np.lib.format.write_array_header_1_0(stream, header)
    limits = np.iinfo(np.int32)
    for values, lengths in _column(path, names):
        if (other := lengths[lengths != seq_len]).size:
            raise DataError(
                f"{path} has a row of {other[0]} tokens, but the run expects {seq_len}",
                "Cut or pad rows to max_seq_len, with labels of -100 for padding",
            )
        if len(values) and (values.min() < limits.min or values.max() > limits.max):
            raise DataError(f"{path} has numbers outside of int32", "Correct its columns")
        stream.write(values.astype("<i4").tobytes())


def _column(path: Path, names: Sequence[str]) -> Column:
    """Yield the first column with one of these names, some rows at a time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    advice = f"Store lists of whole numbers in a column named {' or '.join(names)}"
    with _readable(path):
        file = _open(path)
        present = file.schema_arrow.names
        name = next((name for name in names if name in present), None)
        if name is None:
            raise DataError(
                f"{path} has no column for {names[0]}, only {', '.join(present[:8])}", advice
            )
        kind = file.schema_arrow.field(name).type
        if not (
            pa.types.is_list(kind)
            or pa.types.is_large_list(kind)
            or pa.types.is_fixed_size_list(kind)
        ):
            raise DataError(f"the column {name} of {path} has {kind} instead of lists", advice)
        for batch in file.iter_batches(_ROWS, columns=[name]):
            lengths = pc.list_value_length(batch.column(0))
            numbers = batch.column(0).flatten()
            if lengths.null_count or numbers.null_count:
                raise DataError(f"the column {name} of {path} has missing rows or numbers", advice)
            values = numbers.to_numpy(zero_copy_only=False)
            if values.dtype.kind not in "ui":
                raise DataError(f"the column {name} of {path} has lists of {values.dtype}", advice)
            yield values, lengths.to_numpy(zero_copy_only=False)


def _open(path: Path) -> Any:
    import pyarrow.parquet as pq

    with _readable(path):
        return pq.ParquetFile(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of pyarrow in the block into DataError."""
    import pyarrow as pa

    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        ValueError,
    ) as error:  # ValueError: a column name is not text
        reason = str(error).partition("\n")[0][:200]
        raise DataError(
            f"cannot read {path} as parquet: {reason}", "Write or copy it again"
        ) from None


# A row's position depends on all rows before it, so a file is unpacked whole, a few rows at a time.
# The cache key is the hash of path, size and times, so a changed file is unpacked again. One
# process unpacks, and the others wait.
def _unpack_once(path: Path, kind: str, write: Callable[[BinaryIO], None]) -> Path:
    """Return the unpacked file of this kind. Unpack it if the cache does not have it."""
    if find_spec("pyarrow") is None:
        raise DataError(
            f"{path} is a parquet file, but pyarrow is not installed",
            "Run pip install 'aftermath[parquet]', then restart",
        )
    try:
        now = path.stat()
        version = f"{path}\0{now.st_size}\0{now.st_mtime_ns}\0{now.st_ctime_ns}"
        key = hashlib.sha256(version.encode()).hexdigest()[:32]
        folder = cache_directory("unpacked") / key
        target = folder / f"{path.name}.{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder):
            if not target.is_file():
                with replacing(target) as stream:
                    write(stream)
    except OSError as error:
        raise DataError(
            f"cannot unpack {path} into {cache_directory('unpacked')}: {error.strerror}",
            "Free some space, or set XDG_CACHE_HOME to a folder on another disk",
        ) from None
    return target
