"""Token file formats: raw, NumPy and llm.c, recognised by their first bytes.

Tokens are unsigned, little-endian, 2 or 4 bytes. A file of another width or format is refused,
never converted. Sources: NumPy's format documentation (versions 1.0 to 3.0), llm.c's `dev/data`
and `llmc/dataloader.h`, and modded-nanogpt's training script.
"""

from __future__ import annotations

import codecs
import io
import re
import shlex
import struct
from dataclasses import dataclass
from math import prod
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.data.source import DataError, WrongTokens

WIDTHS = {2: "TwoBytes", 4: "FourBytes"}
# Tokens of a wrong width or byte order can all be inside the vocabulary, so training would continue
# with garbage. The checks look for bytes at impossible positions, not at statistics.
_FEW = 64  # fewer tokens prove nothing
_FEW_FOR_ORDER = 256
_FEW_DIFFERENT = 16
_LARGEST_VOCABULARY = 1 << 20  # published tokenizers have at most about 2^18 tokens
_HIGH_HALF = (_LARGEST_VOCABULARY - 1) >> 16  # the largest second half of a 4-byte token
_SAVE = "Write the tokens again with numpy.asarray(tokens, '<u4').tofile(NAME)"


def width_fix(token_bytes: int) -> str:
    """Return the fix for files whose token width differs from the run's."""
    return f'Set token_size_in_bytes = "{WIDTHS[token_bytes]}" (data inspect: --token-bytes {token_bytes})'


def check_width_and_order(name: str, tokens: NDArray[Any]) -> None:
    """Raise WrongTokens if the tokens of a file have another width or byte order.

    `tokens` are consecutive and begin at an even position of the file.
    """
    count = len(tokens) // 2 * 2
    if count < _FEW:
        return
    even = tokens[0:count:2]
    odd = tokens[1:count:2]
    if even.any() != odd.any():
        width = 2 * tokens.dtype.itemsize
        fix = width_fix(width) if width in WIDTHS else _SAVE
        raise WrongTokens(
            f"every second token of {name} is 0: its tokens seem to have {width} bytes", fix
        )
    if tokens.dtype.itemsize == 2 and odd.max() <= _HIGH_HALF and even.max() >= 1000:
        raise WrongTokens(
            f"every second token of {name} is at most {odd.max()}: its tokens seem to have 4 bytes",
            width_fix(4),
        )
    if _has_other_order(tokens):
        raise WrongTokens(
            f"{name} seems to be big-endian: its largest token is {tokens.max()}, but {tokens.byteswap().max()} with "
            "swapped bytes",
            f"Write the tokens little-endian with numpy.asarray(tokens, '{tokens.dtype.str}').tofile(NAME)",
        )
    if tokens.dtype.itemsize == 4 and np.count_nonzero(tokens >= _LARGEST_VOCABULARY) * 2 > len(
        tokens
    ):
        raise WrongTokens(
            f"{name} has tokens up to {tokens.max()}: its tokens seem to have 2 bytes", width_fix(2)
        )


def check_not_only_zeros(name: str, tokens: NDArray[Any]) -> None:
    """Raise WrongTokens if the sampled tokens of a file are all 0: it was never filled."""
    if len(tokens) >= _FEW and not tokens.any():
        raise WrongTokens(f"{name} contains only zeros", "Copy, download or tokenise it again")


def _has_other_order(tokens: NDArray[Any]) -> bool:
    """Return whether swapping bytes makes the largest token clearly smaller.

    A token's low byte takes all values, its high byte only those of the vocabulary. So swapping
    makes the tokens of a correct file larger. The test cannot decide for vocabularies near 2^16.
    """
    if len(tokens) < _FEW_FOR_ORDER or len(np.unique(tokens)) < _FEW_DIFFERENT:
        return False
    return int(tokens.byteswap().max()) * 5 < int(tokens.max()) * 4


SUFFIXES = (".bin", ".ds", ".npy")
"""The endings of token files in a folder."""
HEAD_BYTES = 4096
"""The number of bytes at the start of a file that `layout_of` inspects."""
# The header of llm.c and modded-nanogpt is 256 int32. The first three are a magic number, a version
# and the number of tokens.
_LLMC_BYTES = 1024
_LLMC_WIDTHS = {(20240520, 1): 2, (20240801, 7): 4}
"""Bytes per token by magic number and version: for GPT-2's and Llama 3's tokens."""
_LLMC_OTHERS = {
    20240522: "an evaluation file of llm.c",
    20240326: "a model of llm.c",
    20240327: "a training state of llm.c",
    20240328: "a tokenizer of llm.c",
}
_NPY = b"\x93NUMPY"
_PACKED = {
    b"ARROW1": ("an Arrow file", "Write its token lists as raw tokens"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "Decompress it first"),
    b"\xfd7zXZ\x00": ("compressed with xz", "Decompress it first"),
    b"BZh91AY&SY": ("compressed with bzip2", "Decompress it first"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "Unpack it first"),
    b"PK\x03\x04": ("a zip archive", "Unpack it first"),
    b"version https://git-lfs": ("a git-lfs pointer, not the file itself", "Run git lfs pull"),
}
"""Formats that can hold text but cannot be read, by first bytes, each with its fix."""
_FOREIGN = _PACKED | {
    b"PAR1": (
        "a parquet file",
        "Use it from a folder of this machine (Local), under a name that ends in .parquet",
    ),
    b"\x1f\x8b\x08": ("compressed with gzip", "Decompress it first"),
    b"\x80\x04\x95": (
        "a pickle, which this client never opens",
        "Write its tokens as raw tokens or .npy",
    ),
    b"\x80\x05\x95": (
        "a pickle, which this client never opens",
        "Write its tokens as raw tokens or .npy",
    ),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", "Write its tokens as raw tokens or .npy"),
    b"%PDF-": ("a PDF", "Convert it to text, then run aftermath-solana data tokenize"),
    b"GGUF": ("a GGUF model, not tokens", "Name the folder of the token files"),
    b"LITPKDS": ("a token file of lit-gpt", "Write its tokens as raw tokens or .npy"),
    b"<!DOCTYPE": ("a web page", "Open its address in a browser"),
    b"<html": ("a web page", "Open its address in a browser"),
}
_NAMES = {
    ".gz": ("gzip", b"\x1f\x8b\x08"),
    ".parquet": ("parquet", b"PAR1"),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd"),
    ".xz": ("xz", b"\xfd7zXZ\x00"),
    ".bz2": ("bzip2", b"BZh"),
    ".zip": ("zip", b"PK"),
    ".7z": ("7z", b"7z\xbc\xaf\x27\x1c"),
}
"""Format and first bytes that each suffix promises."""
_ALWAYS_HAVE_MAGIC = (".gz", ".parquet")
_LEAST_TEXT = 64  # bytes; shorter text may be tokens by coincidence
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_TEXT = (".txt", ".json", ".jsonl", ".md", ".csv")


@dataclass(frozen=True)
class Layout:
    """The tokens of one file."""

    start: int
    """Bytes before the first token."""
    tokens: int


@dataclass(frozen=True)
class Array:
    """A NumPy array in a file, row after row."""

    start: int
    """Bytes before the first number."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def packed_format(head: bytes) -> str | None:
    """Return the format of a file that may hold text but cannot be read, or None."""
    return next((what for magic, (what, _) in _PACKED.items() if head.startswith(magic)), None)


def misnamed(name: str, head: bytes) -> tuple[str, str] | None:
    """Return the error and its fix for a file whose name promises another format, else None.

    An interrupted or refused download often leaves text, a web page or nothing under such a name.
    """
    suffix = PurePath(name).suffix.lower()
    promised, magic = _NAMES.get(suffix, ("", b""))
    if head.startswith(magic):
        return None
    known = next((what for other, (what, _) in _FOREIGN.items() if head.startswith(other)), None)
    kind = known or ("empty" if not head else "text" if _is_text(head, least=1) else None)
    if kind is None and suffix not in _ALWAYS_HAVE_MAGIC:
        return None  # some formats, such as zstd, have several possible first bytes
    fix = "Download or copy it again"
    fix += f", or remove {suffix} from its name if the contents are right" if kind == "text" else ""
    return f"{name} has the suffix of {promised}, but it is {kind or 'of an unknown kind'}", fix


def layout_of(name: str, size: int, head: bytes, token_bytes: int) -> Layout:
    """Return where the tokens are in a file of `size` bytes with the first bytes `head`.

    `head` has HEAD_BYTES bytes, or all. Raise DataError with a fix for a file that is empty,
    truncated or of another format.
    """
    if size == 0:
        raise DataError(f"{name} is empty", "Remove it, copy it again or tokenise it again")
    for magic, (what, advice) in _FOREIGN.items():
        if head.startswith(magic):
            raise DataError(f"{name} is {what}", advice)
    if (wrong := misnamed(name, head)) is not None:
        raise DataError(*wrong)
    if name.lower().endswith(_TEXT):
        raise _text_error(name)
    if head.startswith(_NPY):
        return _npy(name, size, head, token_bytes)
    if len(head) >= 8:
        magic, version = struct.unpack_from("<2i", head)
        if magic in _LLMC_OTHERS and 0 <= version < 256:
            raise DataError(
                f"{name} is {_LLMC_OTHERS[magic]}, not tokens to train on", "Name its token files"
            )
        if any(magic == known for known, _ in _LLMC_WIDTHS):
            return _llmc(name, size, head, token_bytes)
    if head[8:10] == b'{"' and head[4:8] == bytes(4):
        raise DataError(
            f"{name} is a safetensors model, not tokens", "Name the folder of the token files"
        )
    if name.endswith(".npy"):
        raise DataError(
            f"{name} has the suffix .npy, but it is not a NumPy array",
            "Write it with numpy.save, or rename it to .bin",
        )
    if _is_text(head):
        raise _text_error(name)
    return _raw_layout(name, size, 0, size, token_bytes)


def tokenise_options(text: PurePath) -> str:
    """Return the options of `data tokenize` that read a file or folder and write next to it."""
    output = text.with_name(f"{text.stem or 'text'}-tokens") if text.name else text / "tokens"
    return f"--input {shlex.quote(str(text))} --output {shlex.quote(str(output))}"


def _text_error(name: str) -> DataError:
    options = "--input FILE --output FOLDER" if "://" in name else tokenise_options(PurePath(name))
    return DataError(
        f"{name} is text, not tokens",
        f"Tokenise it first: aftermath-solana data tokenize {options}",
    )


def _raw_layout(name: str, size: int, start: int, count: int, token_bytes: int) -> Layout:
    if count % token_bytes:
        raise WrongTokens(
            f"{name} is truncated: its size of {size} is not a multiple of the {token_bytes} bytes of a token",
            "Copy or tokenise the file again, and check token_size_in_bytes",
        )
    return Layout(start, count // token_bytes)


def _is_text(head: bytes, *, least: int = _LEAST_TEXT) -> bool:
    """Return whether `head` is UTF-8 text without control characters, which tokens never are."""
    if len(head) < least or _CONTROL.search(head):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end inside a character
    except UnicodeDecodeError:
        return False
    return True


def _llmc(name: str, size: int, head: bytes, token_bytes: int) -> Layout:
    if len(head) < _LLMC_BYTES:
        raise DataError(f"{name} ends within its header", "Copy the file again")
    magic, version, count = struct.unpack_from("<3i", head)
    width = _LLMC_WIDTHS.get((magic, version))
    if width is None:
        readable = next(one for number, one in _LLMC_WIDTHS if number == magic)
        raise DataError(
            f"{name} has an llm.c header of version {version}; this client reads only {readable}",
            "Write its tokens as raw tokens or .npy",
        )
    check_stated_width(name, width, token_bytes)
    if count < 0 or size != _LLMC_BYTES + width * count:
        raise DataError(
            f"{name} has {size} bytes, but its header says {count} tokens ({_LLMC_BYTES + width * count} bytes)",
            "Copy the file again",
        )
    return Layout(_LLMC_BYTES, count)


def _npy(name: str, size: int, head: bytes, token_bytes: int) -> Layout:
    array = array_of(name, size, head)
    if array.dtype.kind != "u" or array.dtype.itemsize not in (2, 4):
        raise DataError(
            f"{name} is an array of {array.dtype}", "Save it as uint16 or uint32, little-endian"
        )
    check_stated_width(name, array.dtype.itemsize, token_bytes)
    return Layout(array.start, prod(array.shape))


def array_of(name: str, size: int, head: bytes) -> Array:
    """Return the array in a `.npy` file of `size` bytes with the first bytes `head`.

    Raise DataError unless it holds little-endian integers row by row and is complete.
    """
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream, max_header_size=HEAD_BYTES)
    except (
        Exception
    ) as error:  # NumPy evaluates the header as Python, which raises many kinds of errors
        raise DataError(
            f"{name} has no valid NumPy header: {error}", "Write it with numpy.save"
        ) from None
    if dtype.kind not in "ui" or dtype.byteorder == ">":
        raise DataError(
            f"{name} is an array of {dtype}", "Save it as uint16 or uint32, little-endian"
        )
    if fortran and len(shape) > 1:
        raise DataError(
            f"{name} is stored column by column", "Save numpy.ascontiguousarray(array) instead"
        )
    start = stream.tell()
    count = prod(int(edge) for edge in shape)
    if min(shape, default=1) < 0 or size != start + count * dtype.itemsize:
        raise DataError(
            f"{name} has {size} bytes, but an array of {count} tokens needs {start + count * dtype.itemsize}",
            "Copy the file again",
        )
    return Array(start, tuple(shape), dtype)


def check_stated_width(name: str, actual: int, expected: int) -> None:
    """Raise WrongTokens if the token width that a file states differs from the run's."""
    if actual != expected:
        fix = (
            width_fix(actual)
            if actual in WIDTHS
            else "Write the tokens again, with 2 or 4 bytes each"
        )
        raise WrongTokens(
            f"{name} has tokens of {actual} bytes, but the run expects {expected}", fix
        )
