"""Parquet files: equal tokens as in raw files, unpacked once, errors with the file name."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aftermath.data import parquet
from aftermath.data.local import open_tokens
from aftermath.data.preprocessed import PreprocessedRows
from aftermath.data.source import DataError

LISTS = [[1, 2, 3], [], [4], list(range(5, 200)), [7] * 41]
ROWS = np.arange(40).reshape(5, 8)
WANTED = np.where(ROWS % 8 < 3, -100, ROWS)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def write(path: Path, kind: Any = None, **columns: Any) -> Path:
    pq.write_table(
        pa.table({name: pa.array(rows, kind) for name, rows in columns.items()}),
        path,
        row_group_size=2,
    )
    return path


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    "kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64()), pa.list_(pa.int32())]
)
def test_parquet_lists_give_tokens_of_raw_file(
    tmp_path: Path, kind: pa.DataType, width: int
) -> None:
    write(tmp_path / "a.parquet", kind, input_ids=LISTS)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.bin").write_bytes(np.concatenate(LISTS).astype(f"<u{width}").tobytes())
    tokens = open_tokens(tmp_path, width, 16, vocab_size=256)
    raw = open_tokens(tmp_path / "raw", width, 16, vocab_size=256)
    assert tokens.sequences == raw.sequences == 15
    assert np.array_equal(tokens.read(range(30)), raw.read(range(30)))
    assert tokens.record()[0].samples == raw.record()[0].samples


@settings(
    max_examples=max(20, settings().max_examples // 10),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lists=st.lists(st.lists(st.integers(0, 65535), max_size=40), max_size=60))
def test_parquet_rows_keep_their_order(tmp_path: Path, lists: list[list[int]]) -> None:
    path = write(tmp_path / "a.parquet", pa.list_(pa.int32()), tokens=lists)
    assert np.fromfile(parquet.unpacked_tokens(path, 2), "<u2").tolist() == [
        token for row in lists for token in row
    ]


def test_parquet_rows_equal_those_of_arrays(tmp_path: Path) -> None:
    write(
        tmp_path / "a.parquet",
        pa.list_(pa.int32()),
        inputs=ROWS[:2].tolist(),
        labels=WANTED[:2].tolist(),
    )
    write(
        tmp_path / "b.parquet",
        pa.list_(pa.int64(), 8),
        inputs=ROWS[2:].tolist(),
        labels=WANTED[2:].tolist(),
    )
    source = PreprocessedRows(tmp_path, 8, 40, labels=True)
    assert source.sequences == 5
    assert np.array_equal(source.read([4, 0, 7]), np.stack([ROWS, WANTED], axis=1)[[4, 0, 2]])
    assert len(source.record()) == 4
    assert np.array_equal(PreprocessedRows(tmp_path, 8, 40, labels=False).read([1]), ROWS[[1]])


def test_parquet_file_is_unpacked_once_and_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", tokens=[[1, 2, 3, 4]])
    first = parquet.unpacked_tokens(path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "_column", None)
        assert parquet.unpacked_tokens(path, 2) == first
    as_it_was = path.stat()
    write(path, tokens=[[4, 3, 2, 1]])
    os.utime(path, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
    assert path.stat().st_size == as_it_was.st_size
    assert np.fromfile(parquet.unpacked_tokens(path, 2), "<u2").tolist() == [4, 3, 2, 1]


@pytest.mark.slow
def test_concurrent_processes_unpack_one_complete_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", tokens=[list(range(500))] * 400)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        paths = pool.starmap(parquet.unpacked_tokens, [(path, 2)] * 4)
    assert len(set(paths)) == 1
    assert np.array_equal(np.fromfile(paths[0], "<u2"), np.tile(np.arange(500), 400))
    assert [file.name for file in paths[0].parent.iterdir()] == [paths[0].name]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"text": ["a"]}, "no column for input_ids, only text"),
        ({"tokens": [1, 2]}, "the column tokens of .* has int64 instead of lists"),
        ({"tokens": ["a"]}, "the column tokens of .* has string instead of lists"),
        ({"tokens": [[1.5]]}, "has lists of float64"),
        ({"tokens": [["a"]]}, "has lists of object"),
        ({"tokens": [[1], None]}, "missing rows or numbers"),
        ({"tokens": [[1, None]]}, "missing rows or numbers"),
        ({"tokens": [[-1, 5]]}, "has numbers from -1 to 5 for tokens of 2 bytes"),
        ({"tokens": [[65536]]}, "for tokens of 2 bytes"),
        ({"tokens": [[2**63 - 1]]}, "for tokens of 2 bytes"),
    ],
)
def test_parquet_columns_of_other_types_are_refused(
    tmp_path: Path, columns: dict[str, Any], sentence: str
) -> None:
    path = write(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError, match=sentence) as caught:
        open_tokens(path, 2, 16, vocab_size=256)
    assert "a.parquet" in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("inputs", "labels", "sentence"),
    [
        (ROWS.tolist(), None, "no column for labels, only inputs"),
        (
            ROWS[:, :7].tolist(),
            WANTED[:, :7].tolist(),
            "a row of 7 tokens, but the run expects 8",
        ),
        ([[1] * 8, [1] * 9], [[1] * 8] * 2, "a row of 9 tokens"),
        ((ROWS + 1).tolist(), WANTED.tolist(), "token 40 is outside the vocabulary of 40"),
        ([[2**40] * 8], [[1] * 8], "numbers outside of int32"),
    ],
)
def test_parquet_wrong_rows_are_named(
    tmp_path: Path, inputs: Any, labels: Any, sentence: str
) -> None:
    write(tmp_path / "a.parquet", inputs=inputs, **({} if labels is None else {"labels": labels}))
    with pytest.raises(DataError, match=sentence):
        PreprocessedRows(tmp_path, 8, 40, labels=True).read(range(5))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_parquet_random_bytes_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.parquet"
    if not path.exists():
        write(path, tokens=LISTS)
        (tmp_path / "whole").write_bytes(path.read_bytes())
    content = bytearray((tmp_path / "whole").read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=8)):
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    with contextlib.suppress(DataError):
        open_tokens(path, 2, 16, vocab_size=1 << 16)


def test_missing_pyarrow_is_named_in_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", tokens=LISTS)
    known = importlib.util.find_spec
    monkeypatch.setattr(
        parquet, "find_spec", lambda name: None if name == "pyarrow" else known(name)
    )
    with pytest.raises(DataError, match="pyarrow is not installed") as caught:
        open_tokens(path, 2, 16, vocab_size=256)
    assert "aftermath[parquet]" in str(caught.value.fix)


def test_unwritable_unpack_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot unpack") as caught:
        open_tokens(write(tmp_path / "a.parquet", tokens=LISTS), 2, 16, vocab_size=256)
    assert "XDG_CACHE_HOME" in str(caught.value.fix)
