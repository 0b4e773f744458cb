"""Documents of text files: formats, separators of documents, and memory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aftermath.cli.error_docs import PAGES, with_local_pages
from aftermath.data import texts as module
from aftermath.data.texts import NOT_TEXT, TextError, TextPiece, Texts

MARK = "<|endoftext|>"


def _write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _documents(*paths: Path, **options: str) -> list[str]:
    """Return whole documents, put together from their pieces."""
    documents = [""]
    for text, ends in Texts(paths, **options):
        documents[-1] += text
        if ends:
            documents.append("")
    assert documents.pop() == ""
    return documents


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("a.txt", "one\r\ntwo", ["one\r\ntwo"]),
        ("a.txt", b"\xef\xbb\xbfone", ["one"]),  # a byte order mark is not text
        ("a.txt", "", []),
        ("a.txt", f"one\n{MARK}\ntwo\n{MARK}\n", ["one\n", "two\n"]),
        ("a.txt", f"{MARK}\r\none\n{MARK}\n\n {MARK} ", ["one\n", "\n"]),
        ("a.txt", f"one {MARK}\ntwo", [f"one {MARK}\ntwo"]),
        ("a.txt", "one\n</s>\ntwo", ["one\n", "two"]),
        ("a.txt.gz", gzip.compress(b"one", mtime=0), ["one"]),
        ("a.bin", gzip.compress(b"one", mtime=0), ["one"]),
        ("a.jsonl", '{"text": "one"}\n\n{"text": ""}\n{"text": "two\\n"}', ["one", "two\n"]),
        ("a.jsonl.gz", gzip.compress(b'{"text": "one"}', mtime=0), ["one"]),
        ("a.json", '{"text": "one"}\n{"text": "two"}\n', ["one", "two"]),
        ("a.json", '{"name": "package"}\n', ['{"name": "package"}\n']),
    ],
)
def test_texts_of_each_format_give_documents(
    tmp_path: Path, name: str, content: bytes | str, documents: list[str]
) -> None:
    path = _write(tmp_path / name, content)
    assert _documents(path, separator="</s>") == documents


def test_texts_of_parquet_give_named_column(tmp_path: Path) -> None:
    table = pa.table({"content": ["one", None, "two"], "id": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert _documents(tmp_path / "a.parquet", field="content") == ["one", "two"]
    with pytest.raises(
        TextError, match='no text column "text"; it has text in the columns content'
    ) as refused:
        _documents(tmp_path / "a.parquet")
    assert "--text-field" in refused.value.fix


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", '{"body": "one"}\n', 'line 1 has no text in "text"; it has text in body'),
        ("a.jsonl", '{"text": "one"}\nrubbish\n', "line 2 of .* is not valid JSON"),
        ("a.jsonl", '{"text": 1}', 'line 1 has no text in "text"'),
        (
            "a.jsonl",
            '{"a": ""}\n{"text": ""}\n7\n',
            "has text in a; 2 of the first 3 records have none",
        ),
        (
            "a.jsonl",
            '{"text": ""}\n' + '{"a": 1}\n' * 200 + "rubbish",
            "102 of the first 103 records have none",
        ),
        ("a.txt.gz", "not packed", "has the suffix of gzip, but it is text"),
        ("a.jsonl.gz", b"<!DOCTYPE html><p>Not found", "it is a web page"),
        ("a.gz", b"", "it is empty"),
        ("a.gz", bytes(range(99)), "it is of an unknown kind"),
        ("a.gz", b"PK\x03\x04.", "it is a zip archive"),
        ("a.txt.zst", "not packed", "has the suffix of zstd, but"),
        ("a.parquet", '{"text": "one"}', "has the suffix of parquet, but"),
        ("a.json", json.dumps([{"text": "one"}]), "is one JSON array"),
        ("a.txt.gz", gzip.compress(b"one" * 999, mtime=0)[:-9], "is damaged"),
        ("a.parquet", b"PAR1 and no more", "cannot read .* as parquet"),
    ],
)
def test_texts_of_broken_file_name_it_with_fix(
    tmp_path: Path, name: str, content: bytes | str, sentence: str
) -> None:
    with pytest.raises(TextError, match=sentence) as refused:
        _documents(_write(tmp_path / name, content))
    assert name in refused.value.message
    assert refused.value.fix
    assert with_local_pages(PAGES[refused.value.code]).endswith("#from-text-to-tokens")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "a.jsonl",
            '{"text": "one"}\n{"title": "x"}\n{"text": null}\n[1]\n{"text": "two"}\n{"text": "three"}',
        ),
        (
            "a.json",
            '{"source": "x"}\n{"text": "one"}\n{"text": "two"}\n{"text": "three"}\nnull\n{"text": 1}',
        ),
        ("a.parquet", ["one", None, "two", None, "three", None]),
    ],
)
def test_records_without_text_are_skipped_and_counted(
    tmp_path: Path, name: str, content: str | list[str]
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        pq.write_table(pa.table({"text": content}), path)
    texts = Texts([path, path])
    assert [piece.text for piece in texts] == ["one", "two", "three"] * 2
    assert texts.skipped_records == 6
    place = {"a.jsonl": "line 2", "a.json": "line 1", "a.parquet": "row 2"}[name]
    assert texts.first_skipped == f"{path}, {place}"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x28\xb5\x2f\xfd....", "compressed with zstd"),
        (b"PK\x03\x04....", "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a git-lfs pointer, not the file itself"),
        ("one".encode("utf-16"), NOT_TEXT),
        ("one".encode("utf-16-le"), NOT_TEXT),  # valid UTF-8 in which every second byte is NUL
        (b"ends within a letter \xc3", NOT_TEXT),
    ],
)
def test_texts_unreadable_records_are_counted_by_kind(
    tmp_path: Path, content: bytes, kind: str
) -> None:
    texts = Texts([_write(tmp_path / "a", content), _write(tmp_path / "b", "one")])
    assert list(texts) == [TextPiece("one", ends=True)]
    assert texts.left_out == {kind: 1}


@pytest.mark.parametrize(
    "written",
    [
        lambda text: ("a.txt", text.encode()),
        lambda text: ("a.txt.gz", gzip.compress(text.encode(), mtime=0)),
        lambda text: ("a.jsonl", json.dumps({"text": text}).encode()),
    ],
)
@pytest.mark.parametrize("line", ["word " * 5 + "é\n", "no end of a line "])
def test_large_document_comes_in_bounded_pieces(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: Callable[[str], tuple[str, bytes]],
    line: str,
) -> None:
    monkeypatch.setattr(module, "_PIECE", 100)
    name, content = written(line * 50)
    pieces = list(Texts([_write(tmp_path / name, content)]))
    assert max(len(piece.text) for piece in pieces) <= 200
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(piece.text for piece in pieces) == line * 50


def test_separator_across_pieces_splits_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"document {number}\n{MARK}\n" for number in range(50))
    for size in (20, 31, 64):
        monkeypatch.setattr(module, "_PIECE", size)
        assert _documents(_write(tmp_path / "a", text)) == [
            f"document {number}\n" for number in range(50)
        ], size
