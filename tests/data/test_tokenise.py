"""Tokenising: bytes are ids, shards and order, the default corpus, and refusals."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from aftermath.data import texts
from aftermath.data import tokenise as module
from aftermath.data.bytelevel import END_TOKEN, byte_tokenizer
from aftermath.data.local import open_tokens
from aftermath.data.source import DataError
from aftermath.data.tokenise import folder_documents, hold_out, standard_library, tokenise
from data.script_runs import run


def corpus(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    (root / "b.txt").write_text("second")
    (root / "a.txt").write_text("first é")
    (root / "sub" / "c.md").write_text(f"third {END_TOKEN}")
    (root / "d.png").write_bytes(b"\xff\xfe\x00")
    (root / ".hidden").write_text("secret")
    return root


@given(st.text())
def test_byte_tokenizer_ids_are_bytes(text: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_bytes_outside_utf8_have_library_names() -> None:
    names = {byte_tokenizer().id_to_token(byte) for byte in range(256)}
    assert names == set(pre_tokenizers.ByteLevel.alphabet())
    assert byte_tokenizer().id_to_token(0xFF) == "\u00ff"


def test_documents_are_sorted_ended_and_never_contain_control(tmp_path: Path) -> None:
    documents = folder_documents(corpus(tmp_path / "text"))
    result = tokenise(documents, tmp_path / "out", byte_tokenizer(), token_bytes=2)
    assert (result.documents, result.skipped, result.vocab_size) == (3, 1, 257)
    expected = [*"first é".encode(), 256, *b"second", 256, *f"third {END_TOKEN}".encode(), 256]
    assert np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2").tolist() == expected
    assert result.tokens == len(expected)
    assert (
        Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).token_to_id(END_TOKEN) == 256
    )


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_shards_are_full_and_hold_equal_stream(tmp_path: Path, token_bytes: int) -> None:
    documents = folder_documents(corpus(tmp_path / "text"))
    whole = tokenise(documents, tmp_path / "one", byte_tokenizer(), token_bytes=token_bytes)
    parts = tokenise(
        documents, tmp_path / "many", byte_tokenizer(), token_bytes=token_bytes, shard_tokens=7
    )
    assert [path.stat().st_size // token_bytes for path in parts.files[:-1]] == [7] * (
        len(parts.files) - 1
    )
    assert b"".join(path.read_bytes() for path in parts.files) == whole.files[0].read_bytes()
    assert (
        open_tokens(tmp_path / "many", token_bytes, 7, vocab_size=257).sequences
        == whole.tokens // 7
    )


def test_standard_library_budget_bounds_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "standard_library_root", lambda: tmp_path)
    for folder in ("", "json", "test", "site-packages/more", "idlelib/idle_test"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for number in range(40):
            (tmp_path / folder / f"{number}.py").write_bytes(bytes(1000 + 10 * number))
    (tmp_path / "empty.py").touch()
    (tmp_path / "readme.txt").write_text("no source")
    small = standard_library(20_000)
    large = standard_library(40_000)
    assert 18_000 < sum(path.stat().st_size for path in small) <= 20_000
    assert len(large) > len(small)
    assert small == sorted(small) == standard_library(20_000)
    assert {path.parent.name for path in large} == {"json", tmp_path.name}
    assert len(standard_library(10**6)) == 80
    with pytest.raises(DataError, match="fits in 0 bytes"):
        standard_library(0)


def test_output_with_older_tokens_is_refused(tmp_path: Path) -> None:
    documents = folder_documents(corpus(tmp_path / "text"))
    tokenise(documents, tmp_path / "out", byte_tokenizer(), token_bytes=2)
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(DataError, match="already has token files"):
        tokenise(documents, tmp_path / "out", byte_tokenizer(), token_bytes=2)
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_ids_wider_than_tokens_are_refused(tmp_path: Path) -> None:
    big = Tokenizer(models.WordLevel({"a": 70_000, "[UNK]": 1}, unk_token="[UNK]"))
    big.pre_tokenizer = pre_tokenizers.Whitespace()
    documents = folder_documents(corpus(tmp_path / "text"))
    with pytest.raises(DataError, match=r"70000 do not fit into 2 bytes\nUse 4 bytes"):
        tokenise(documents, tmp_path / "out", big, token_bytes=2)
    assert tokenise(documents, tmp_path / "out", big, token_bytes=4).tokens > 0


def test_folders_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        folder_documents(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no files"):
        folder_documents(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"\xff\xff")
    with pytest.raises(DataError, match="UTF-8"):
        tokenise([tmp_path / "x.bin"], tmp_path / "out", byte_tokenizer(), token_bytes=2)
    assert not list((tmp_path / "out").glob("*.bin"))


def test_documents_end_with_named_token_or_none(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["</s>"])
    (tmp_path / "a.txt").write_text("one\n</s>\ntwo")
    for end_token, expected in (
        ("</s>", [*b"one\n", 257, *b"two", 257]),
        (None, [*b"one\n</s>\ntwo"]),
    ):
        output = tmp_path / f"out-{end_token is None}"
        tokenise([tmp_path / "a.txt"], output, tokenizer, token_bytes=2, end_token=end_token)
        assert np.fromfile(output / "tokens-00000.bin", "<u2").tolist() == expected


def test_document_larger_than_batch_is_tokenised_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_PIECE", 100)
    monkeypatch.setattr(module, "_BATCH_CHARACTERS", 150)
    content = "a line of a large document\n" * 200
    (tmp_path / "a.txt").write_text(content)
    tokenise([tmp_path / "a.txt"], tmp_path / "out", byte_tokenizer(), token_bytes=2)
    assert np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2").tolist() == [
        *content.encode(),
        256,
    ]


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.EACCES, "that you may write to"),
        (errno.EROFS, "that you may write to"),
        (errno.ENOSPC, "Free some space"),
    ],
)
def test_unwritable_output_error_has_fix_of_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fix: str
) -> None:
    (tmp_path / "a.txt").write_text("one")

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(DataError, match=f"cannot write .*{os.strerror(code)}") as refused:
        tokenise([tmp_path / "a.txt"], tmp_path / "out", byte_tokenizer(), token_bytes=2)
    assert fix in refused.value.fix


def test_failed_tokenise_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text("rubbish\n")
    with pytest.raises(DataError, match="not valid JSON"):
        tokenise(
            [tmp_path / "a.txt", tmp_path / "b.jsonl"],
            tmp_path / "out",
            byte_tokenizer(),
            token_bytes=2,
            shard_tokens=2,
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_tokenise_script_prints_json_or_an_error(tmp_path: Path) -> None:
    command = [
        "tokenise.py",
        "--output",
        str(tmp_path / "out"),
        "--budget-bytes",
        "50000",
        "--json",
    ]
    status, output, errors = run(*command)
    assert status == 0, errors
    report = json.loads(output)
    assert 40_000 < report["tokens"] <= 50_000 + report["documents"]
    status, _, errors = run(*command)
    assert status == 1
    assert "already has" in json.loads(errors)["error"]


def test_held_out_files_depend_on_path_only(tmp_path: Path) -> None:
    documents = [tmp_path / "sub" / f"{number}.txt" for number in range(1000)]
    training_files, held_out = hold_out(documents, tmp_path, 20)
    assert 150 < len(held_out) < 250
    assert sorted(training_files + held_out) == sorted(documents)
    elsewhere = [Path("/other") / path.relative_to(tmp_path) for path in documents[::2]]
    assert {path.name for path in hold_out(elsewhere, Path("/other"), 20)[1]} == {
        path.name for path in set(documents[::2]) & set(held_out)
    }
    assert set(held_out) < set(hold_out(documents, tmp_path, 40)[1])


def test_standard_library_split_has_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both choices use a hash of the same path, and must not depend on each other."""
    monkeypatch.setattr(module, "standard_library_root", lambda: tmp_path)
    for number in range(400):
        (tmp_path / f"{number}.py").write_text("x")
    documents = standard_library(100)
    training_files, held_out = hold_out(documents, tmp_path, 20)
    assert 0.1 < len(held_out) / len(documents) < 0.3
    assert len(training_files) > len(held_out)


def test_split_with_empty_side_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"20 percent of 1 files leaves one side empty"):
        hold_out([tmp_path / "a"], tmp_path, 20)


def test_tokenise_script_holds_files_out(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / "text" / f"{number % 3}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / f"{number % 3}" / f"{number}.txt").write_text(chr(65 + number) * 9)
    folders = ["--output", str(tmp_path / "out"), "--held-out", str(tmp_path / "held")]
    command = ["tokenise.py", "--input", str(tmp_path / "text"), *folders, "--json"]
    status, output, errors = run(*command)
    assert status == 0, errors
    report = json.loads(output)
    assert report["documents"] + report["held_out"]["documents"] == 40
    assert 1 < report["held_out"]["documents"] < 20
    sides = [
        set(np.fromfile(tmp_path / name / "tokens-00000.bin", "<u2").tolist())
        for name in ("out", "held")
    ]
    assert sides[0] & sides[1] == {256}
    assert sides[0] | sides[1] == {*range(65, 105), 256}
    status, _, errors = run(*command, "--held-out-percent", "0")
    assert status == 2
    assert "from 1 to 99" in json.loads(errors.splitlines()[-1])["error"]
    status, _, errors = run(*command[:-3], "--held-out", str(tmp_path / "out"))
    assert status == 2
    assert errors.startswith("error: --held-out and --output are the same folder")
