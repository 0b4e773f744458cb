"""Token files: order of sequences, wrapping, shuffling, and every way the files can be wrong."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.data.local import open_tokens
from aftermath.data.shuffle import ShuffledOrder
from aftermath.data.source import DataError
from aftermath.data.tokenise import check_output_unused


def write(path: Path, tokens: list[int] | range, token_bytes: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.array(list(tokens), f"<u{token_bytes}").tobytes())
    return path


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_sequences_run_through_sorted_files_and_wrap(tmp_path: Path, token_bytes: int) -> None:
    # two sequences of four, one token left over
    write(tmp_path / "b.bin", range(100, 109), token_bytes)
    write(tmp_path / "a.bin", range(8), token_bytes)
    write(tmp_path / "c.ds", range(200, 204), token_bytes)
    (tmp_path / "tokenizer.json").write_text("{}")
    data = open_tokens(tmp_path, token_bytes, 4, vocab_size=256)
    assert data.sequences == 5
    rows = data.read([0, 1, 2, 3, 4, 5, 12])
    assert rows.dtype == np.int64
    assert rows[:, 0].tolist() == [0, 4, 100, 104, 200, 0, 100]
    assert rows[3].tolist() == [104, 105, 106, 107]


def test_files_shorter_than_sequence_are_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", range(3))
    write(tmp_path / "b.bin", range(4))
    write(tmp_path / "c.bin", range(2))
    data = open_tokens(tmp_path, 2, 4, vocab_size=256)
    assert (data.sequences, data.read([0, 7])[:, 3].tolist()) == (1, [3, 3])


def test_single_file_is_read(tmp_path: Path) -> None:
    assert open_tokens(write(tmp_path / "x.bin", range(8)), 2, 4, vocab_size=256).sequences == 2


def test_four_byte_token_is_read_little_endian(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes([1, 2, 3, 0, 0, 0, 0, 0]))
    assert open_tokens(tmp_path, 4, 2, vocab_size=1 << 18).read([0]).tolist() == [[0x030201, 0]]


def test_shuffled_passes_hold_every_sequence_once_and_differ(tmp_path: Path) -> None:
    write(tmp_path / "x.bin", range(50))
    data = open_tokens(tmp_path, 2, 2, vocab_size=256, shuffle_seed=bytes(32))
    passes = [data.read(range(start, start + 25))[:, 0].tolist() for start in (0, 25)]
    assert [sorted(one) for one in passes] == [list(range(0, 50, 2))] * 2
    assert passes[0] != passes[1]
    again = open_tokens(tmp_path, 2, 2, vocab_size=256, shuffle_seed=bytes(32))
    assert again.read(range(25))[:, 0].tolist() == passes[0]
    other = open_tokens(tmp_path, 2, 2, vocab_size=256, shuffle_seed=b"\1" * 32)
    assert other.read(range(25))[:, 0].tolist() != passes[0]


@given(st.integers(1, 300), st.binary(min_size=32, max_size=32), st.integers(0, 1 << 40))
def test_shuffle_is_a_bijection(count: int, seed: bytes, turn: int) -> None:
    assert sorted(ShuffledOrder(count, seed).at(place, turn) for place in range(count)) == list(
        range(count)
    )


@pytest.mark.parametrize(
    ("count", "place", "turn", "expected"),
    [(10**6 + 3, 123456, 2, 859883), (10**13, 7, 0, 8509137422325)],
)
def test_shuffle_keeps_its_golden_values(count: int, place: int, turn: int, expected: int) -> None:
    """Running runs rely on this order, with and without cached outputs of a pass."""
    order = ShuffledOrder(count, bytes(32))
    assert [order.at(place, turn) for _ in range(2)] == [expected] * 2
    assert order.at(place, turn + 1) != expected


@pytest.mark.parametrize(
    ("files", "path", "options"),
    [
        (
            {},
            "nowhere",
            "--input TEXT --output {place}/nowhere. Or create those of a run's config file",
        ),
        ({}, "", "--input TEXT --output {place}. Or create"),
        (
            {"my books/a.txt": "one"},
            "my books",
            "--input '{place}/my books' --output '{place}/my books-tokens'",
        ),
        (
            {"books/part/a.txt": "one"},
            "books",
            "--input {place}/books --output {place}/books-tokens",
        ),
        (
            {"v1.0/a.md": "one"},
            "v1.0/a.md",
            "--input {place}/v1.0/a.md --output {place}/v1.0/a-tokens",
        ),
        ({"a": "plain text " * 9}, "a", "--input {place}/a --output {place}/a-tokens"),
    ],
)
def test_missing_tokens_error_names_working_command(
    tmp_path: Path, files: dict[str, str], path: str, options: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=r"no token|is text, not tokens") as refused:
        open_tokens(tmp_path / path, 2, 4, vocab_size=256)
    assert f"data tokenize {options.format(place=tmp_path)}" in refused.value.fix
    assert ("aftermath-solana run-files FILE" in refused.value.fix) == (not files)
    if files:
        words = shlex.split(refused.value.fix.partition(": ")[2])
        input_ = Path(words[4])
        output = Path(words[6])
        assert input_.exists()
        check_output_unused(output)


def test_empty_token_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.bin").touch()
    with pytest.raises(DataError, match=r"x\.bin is empty"):
        open_tokens(tmp_path, 2, 4, vocab_size=256)


@pytest.mark.parametrize(("token_bytes", "size"), [(2, 1001), (4, 1002)])
def test_truncated_token_file_is_named_with_size(
    tmp_path: Path, token_bytes: int, size: int
) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(size))
    with pytest.raises(DataError, match=rf"x\.bin is truncated: its size of {size} "):
        open_tokens(tmp_path, token_bytes, 4, vocab_size=256)


def test_data_shorter_than_sequence_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.bin", range(9))
    with pytest.raises(
        DataError, match="no complete sequence of 10 tokens: its longest file has only 9"
    ):
        open_tokens(tmp_path, 2, 10, vocab_size=256)


def test_token_outside_vocabulary_is_named(tmp_path: Path) -> None:
    write(tmp_path / "x.bin", [1, 2, 3, 4, 5, 6, 300, 7])
    data = open_tokens(tmp_path, 2, 4, vocab_size=257)
    assert data.read([0]).tolist() == [[1, 2, 3, 4]]
    with pytest.raises(
        DataError,
        match=r"x\.bin: token 300 at or after position 4 is outside the vocabulary of 257",
    ):
        data.read([1])


def test_file_shrinking_in_use_raises_data_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin", range(8000))
    data = open_tokens(tmp_path, 2, 4, vocab_size=1 << 16)
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match="shrank from 16000 bytes"):
        data.read([1999])
    path.unlink()
    with pytest.raises(DataError, match="cannot read"):
        data.read([0])


@pytest.mark.parametrize(("token_bytes", "seq_len"), [(3, 4), (0, 4), (2, 1)])
def test_settings_out_of_range_are_refused(tmp_path: Path, token_bytes: int, seq_len: int) -> None:
    write(tmp_path / "x.bin", range(8))
    with pytest.raises(DataError):
        open_tokens(tmp_path, token_bytes, seq_len, vocab_size=256)
