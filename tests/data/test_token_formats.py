"""Token formats: which bytes of a file are tokens, and which files are refused."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.data.dummy import DummyTokens
from aftermath.data.fingerprint import BLOCK, records_hash
from aftermath.data.formats import layout_of
from aftermath.data.local import open_tokens
from aftermath.data.source import DataError

TOKENS = np.arange(100, 164)


def llmc(
    tokens: np.ndarray,
    count: int | None = None,
    *,
    magic: int = 20240520,
    version: int = 1,
    dtype: str = "<u2",
) -> bytes:
    header = struct.pack("<3i", magic, version, len(tokens) if count is None else count).ljust(
        1024, b"\0"
    )
    return header + tokens.astype(dtype).tobytes()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "width"),
    [
        ("a.bin", TOKENS.astype("<u2").tobytes(), 2),
        ("a.ds", TOKENS.astype("<u4").tobytes(), 4),
        ("a.bin", llmc(TOKENS), 2),
        ("a.bin", llmc(TOKENS, magic=20240801, version=7, dtype="<u4"), 4),
        ("a.npy", npy(TOKENS.astype("<u2")), 2),
        ("a.npy", npy(TOKENS.astype("<u4").reshape(8, 8)), 4),
    ],
)
def test_token_formats_give_equal_tokens(
    tmp_path: Path, name: str, data: bytes, width: int
) -> None:
    (tmp_path / name).write_bytes(data)
    source = open_tokens(tmp_path, width, 16, vocab_size=256)
    assert source.sequences == 4
    assert source.read(range(4)).ravel().tolist() == TOKENS.tolist()


@pytest.mark.parametrize(
    ("name", "data", "width", "sentence"),
    [
        ("a.bin", llmc(TOKENS, 63), 2, "its header says 63 tokens"),
        ("a.bin", llmc(TOKENS), 4, 'token_size_in_bytes = "TwoBytes"'),
        ("a.bin", llmc(TOKENS)[:800], 2, "ends within its header"),
        (
            "a.bin",
            llmc(TOKENS, magic=20240801, version=7, dtype="<u4"),
            2,
            'token_size_in_bytes = "FourBytes"',
        ),
        (
            "a.bin",
            llmc(TOKENS, magic=20240801, version=8, dtype="<u4"),
            4,
            "llm.c header of version 8",
        ),
        ("a.bin", llmc(TOKENS, version=2), 2, "llm.c header of version 2"),
        ("a.bin", llmc(TOKENS, magic=20240522), 2, "an evaluation file of llm.c"),
        ("a.bin", llmc(TOKENS, magic=20240326, version=3), 2, "a model of llm.c"),
        (
            "a.bin",
            struct.pack("<Q", 90) + b'{"__metadata__":{}}' + bytes(81),
            2,
            "a safetensors model",
        ),
        ("a.bin", b"\xfd7zXZ\x00" + bytes(60), 2, "compressed with xz"),
        ("a.bin.gz", TOKENS.astype("<u2").tobytes(), 2, "has the suffix of gzip, but"),
        ("a.bin", "Text, also with é in it.\n".encode() * 9, 2, "is text, not tokens"),
        ("a.ds", ("é" * 4000).encode(), 4, "is text, not tokens"),
        ("a.npy", npy(TOKENS.astype("<u4")), 2, 'token_size_in_bytes = "FourBytes"'),
        ("a.npy", npy(TOKENS.astype("<i8")), 2, "an array of int64"),
        ("a.npy", npy(TOKENS.astype(">u2")), 2, "an array of >u2"),
        (
            "a.npy",
            npy(np.asfortranarray(TOKENS.astype("<u2").reshape(8, 8))),
            2,
            "column by column",
        ),
        ("a.npy", npy(TOKENS.astype("<u2"))[:-2], 2, "an array of 64 tokens needs"),
        ("a.npy", npy(np.array([{}], dtype=object)), 2, "an array of object"),
        ("a.npy", b"\x93NUMPY\x01\x00\xff\xffjunk", 2, "no valid NumPy header"),
        ("a.npy", TOKENS.astype("<u2").tobytes(), 2, "has the suffix .npy, but"),
        ("a.bin", b"PAR1" + bytes(60), 2, "a parquet file"),
        ("a.bin", b"\x1f\x8b\x08\x00" + bytes(60), 2, "compressed with gzip"),
        ("a.ds", b"\x80\x04\x95" + bytes(61), 2, "a pickle"),
        ("a.bin", b"version https://git-lfs.github.com/spec/v1\n" + bytes(1), 2, "git-lfs pointer"),
        ("a.jsonl", b'{"text": ""}', 2, "text, not tokens"),
    ],
)
def test_file_of_other_format_is_refused(
    tmp_path: Path, name: str, data: bytes, width: int, sentence: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=sentence) as caught:
        open_tokens(tmp_path / name, width, 16, vocab_size=256)
    assert caught.value.fix


@given(
    st.binary(max_size=200), st.sampled_from(["a.bin", "a.npy", "a.ds"]), st.sampled_from([2, 4])
)
def test_token_file_random_bytes_are_read_or_refused(data: bytes, name: str, width: int) -> None:
    for head in (data, b"\x93NUMPY\x01\x00" + data, struct.pack("<2i", 20240520, 1) + data):
        try:
            layout = layout_of(name, len(head), head, width)
        except DataError:
            continue
        assert 0 <= layout.start <= layout.start + layout.tokens * width <= len(head)


REAL = np.random.default_rng(5).zipf(1.2, 4000).clip(max=50256)
"""Tokens as frequent as those of a text by GPT-2's tokenizer."""
BYTES = np.frombuffer(b"Every token is a byte of some text. " * 200, "u1")


@pytest.mark.parametrize(
    ("tokens", "dtype", "width", "sentence"),
    [
        (REAL, "<u4", 2, '4 bytes.*"FourBytes"'),
        (BYTES, "<u4", 2, '4 bytes.*"FourBytes"'),
        (REAL + 65_000, "<u4", 2, '4 bytes.*"FourBytes"'),  # with a large vocabulary
        (REAL, ">u4", 2, "4 bytes"),
        (REAL, "<i8", 2, "4 bytes"),
        (REAL, "<i8", 4, "8 bytes.*<u4"),
        (REAL, "<u2", 4, '2 bytes.*"TwoBytes"'),
        (BYTES, "<u2", 4, '2 bytes.*"TwoBytes"'),
        (REAL, ">u2", 2, "big-endian"),
        (BYTES, ">u2", 2, "big-endian"),
        (REAL, ">u4", 4, "big-endian"),
        (REAL * 2, ">u4", 4, "big-endian"),
    ],
)
def test_tokens_of_another_width_or_order_are_refused(
    tmp_path: Path, tokens: np.ndarray, dtype: str, width: int, sentence: str
) -> None:
    tokens.astype(dtype).tofile(tmp_path / "a.bin")
    with pytest.raises(DataError, match=f"(?s)a.bin.*{sentence}") as refused:
        open_tokens(tmp_path, width, 16, vocab_size=1 << 32)
    assert refused.value.fix


@pytest.mark.parametrize(
    ("tokens", "width"),
    [
        (REAL, 2),
        (REAL + 15_279, 2),  # up to the largest token of 2 bytes
        (BYTES, 2),
        (BYTES, 4),
        (REAL * 5, 4),
        (np.arange(5000), 2),
        (np.zeros(40), 2),  # too few to tell
        (np.random.default_rng(6).integers(0, 1 << 16, 4000), 2),
        (np.random.default_rng(6).integers(0, 200_000, 4000), 4),
        (np.tile([0, 7, 7, 0], 1000), 2),
    ],
)
def test_tokens_of_stated_width_are_accepted(
    tmp_path: Path, tokens: np.ndarray, width: int
) -> None:
    tokens.astype(f"<u{width}").tofile(tmp_path / "a.bin")
    source = open_tokens(tmp_path, width, 16, vocab_size=1 << 32)
    assert source.tokens == len(tokens)
    assert len(source.record()) == 1


@pytest.mark.parametrize(
    ("name", "content", "width", "sentence"),
    [
        ("a.bin.metadata", b"some/tokenizer|4\n6400\n6.4 KT", 2, "tokens of 4 bytes"),
        ("a.bin.metadata", b"some/tokenizer|2\n6400\n6.4 KT", 4, "tokens of 2 bytes"),
        ("a.bin.metadata", b"some/tokenizer|2", 2, None),
        ("a.bin.metadata", b"other metadata", 2, None),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QB", 1, 4) + bytes(40), 2, "tokens of 4 bytes"),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QB", 1, 5) + bytes(40), 4, "tokens of 8 bytes"),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QB", 1, 8) + bytes(40), 2, None),
    ],
)
def test_token_width_of_metadata_file_must_match_run(
    tmp_path: Path, name: str, content: bytes, width: int, sentence: str | None
) -> None:
    TOKENS.astype("<u2").tofile(tmp_path / "a.bin")
    (tmp_path / name).write_bytes(content)
    if sentence is None:
        open_tokens(tmp_path, width, 16, vocab_size=256)
        return
    with pytest.raises(DataError, match=sentence) as refused:
        open_tokens(tmp_path, width, 16, vocab_size=1 << 32)
    assert refused.value.fix


@pytest.mark.parametrize("start", [0, 3])
def test_wrong_tokens_after_head_are_found_by_record(tmp_path: Path, start: int) -> None:
    tokens = np.resize(REAL, 60_000)
    header = llmc(tokens)[:1024] if start else b""
    for wrong, sentence in (
        (tokens.astype("<u4").view("<u2")[: len(tokens)], "4 bytes"),
        (np.where(tokens == 1, 50_300, tokens), "token 50300 is outside the vocabulary of 50257"),
    ):
        data = tokens.astype("<u2")
        data[30_000:] = wrong[30_000:]
        (tmp_path / "a.bin").write_bytes(header + data.tobytes())
        source = open_tokens(tmp_path, 2, 16, vocab_size=50_257)
        with pytest.raises(DataError, match=sentence):
            source.record()
    (tmp_path / "a.bin").write_bytes(header + bytes(2 * len(tokens)))
    with pytest.raises(DataError, match="contains only zeros"):
        open_tokens(tmp_path, 2, 16, vocab_size=50_257).record()


def test_folder_without_token_files_lists_suffixes(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"ARROW1")
    with pytest.raises(DataError, match=r"has no token files .*; its files end in \.arrow"):
        open_tokens(tmp_path, 2, 16, vocab_size=256)


def test_more_files_than_open_limit_are_read(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number:03}.bin").write_bytes(np.full(4, number, "<u2").tobytes())
    source = open_tokens(tmp_path, 2, 4, vocab_size=256)
    assert source.read([*range(150), *range(150)])[:, 0].tolist() == [*range(150), *range(150)]


def test_record_covers_every_file(tmp_path: Path) -> None:
    tokens = np.random.default_rng(7).integers(0, 256, 20 * BLOCK).astype("<u2")
    (tmp_path / "a.bin").write_bytes(tokens.tobytes())
    (tmp_path / "b.bin").write_bytes(tokens[:100].tobytes())
    first = open_tokens(tmp_path, 2, 16, vocab_size=256).record()
    assert [(record.name, record.size) for record in first] == [
        ("a.bin", 40 * BLOCK),
        ("b.bin", 200),
    ]
    (tmp_path / "a.bin").write_bytes(np.roll(tokens, 1).tobytes())
    second = open_tokens(tmp_path, 2, 16, vocab_size=256).record()
    assert second[0] != first[0]
    assert second[1] == first[1]
    assert records_hash(first) != records_hash(second)
    assert records_hash(first) == records_hash(list(first))


def test_dummy_tokens_depend_on_index_only() -> None:
    source = DummyTokens(8, 50)
    rows = source.read([3, 0, 3, 3 + source.sequences])
    assert rows.shape == (4, 8)
    assert rows.min() >= 0
    assert rows.max() < 50
    assert rows[0].tolist() == rows[2].tolist() == rows[3].tolist() != rows[1].tolist()
    assert (
        rows[1].tolist()
        == DummyTokens(8, 50).read([0])[0].tolist()
        == [22, 24, 49, 29, 42, 20, 35, 29]
    )
    assert source.read([]).shape == (0, 8)
    assert not source.record()
