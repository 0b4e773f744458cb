"""The small JSON documents of a checkpoint directory, read with size limits. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from aftermath.base.bounded import Malformed, json_as, json_value
from aftermath.base.errors import AftermathError, short_repr

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
MAX_PART = 255
MAX_NAME = 1024
"""Maximum bytes of a listed file's name: one part, and the whole path."""
_SHOWN_NAME = 120
_NAME_ANOTHER = "Name a directory that this user may read"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MOMENTUM_FILE = "outer_momentum.safetensors"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt", "vocab.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
)
CARD_FILE = "README.md"
COMPANIONS = (
    *TOKENIZER_FILES,
    *(
        "generation_config.json",
        "LICENSE",
        "LICENSE.txt",
        "LICENSE.md",
        "NOTICE",
        "USE_POLICY.md",
        CARD_FILE,
    ),
)
"""Files that every command copies with the weights when a checkpoint has them."""

Strategy = Literal["auto", "sliced", "universal"]


class CheckpointError(AftermathError):
    """A checkpoint is missing, damaged or contradictory, or does not fit the request."""

    code = "checkpoint"


class HubAway(CheckpointError):
    """The Hub cannot be reached now. The requested files may still exist there."""


def damaged(path: Path, error: Exception) -> CheckpointError:
    """Return the error of an unreadable weights file, with safetensors' message cut."""
    return CheckpointError(
        f"{path} is damaged: {str(error)[:200]}", "Copy or download the checkpoint again"
    )


def is_file(path: Path) -> bool:
    """Return whether a file exists. Raises CheckpointError if the system refuses the name."""
    try:
        return path.is_file()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {str(path)[:_SHOWN_NAME]}: {error.strerror}", _NAME_ANOTHER
        ) from None


def check_readable(path: Path) -> None:
    """Raise CheckpointError if this user may not read a file. safetensors would report it as
    missing.
    """
    if not os.access(path, os.R_OK):
        raise CheckpointError(
            f"cannot read {path}: permission denied", f"Allow it for this user: chmod u+r {path}"
        )


def check_listed(name: str, whose: str) -> None:
    """Raise CheckpointError for a file name that is too long for any system.

    `whose` is the document that lists it.
    """
    longest = max(len(part.encode()) for part in name.split("/"))
    if longest > MAX_PART or len(name.encode()) > MAX_NAME:
        raise CheckpointError(
            f"{whose} has a file name that is too long ({len(name)} characters): {short_repr(name)}",
            f"Export or download the files again; a name may have {MAX_PART} bytes per part and {MAX_NAME} in all",
        )


def hf_config(path: Path) -> dict[str, Any]:
    """Return a checkpoint's `config.json` as a dictionary. Raises CheckpointError."""
    if not is_file(path):
        raise CheckpointError(
            f"there is no checkpoint at {path.parent} (no config.json)",
            "Name a directory with config.json and .safetensors; aftermath-solana model init creates one",
        )
    try:
        document = json_value(read_limited(path, MAX_CONFIG_BYTES))
    except Malformed as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return document


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_index(path: Path, is_absent: Callable[[str], bool] = lambda name: False) -> list[str]:
    """Return the weight files of the index at `path`, without those that hold only tensors
    accepted by `is_absent`.

    Raises CheckpointError.
    """
    try:
        index: _Index = json_as(read_limited(path, MAX_INDEX_BYTES), _Index)
    except Malformed as error:
        raise CheckpointError(f"{path} is not a safetensors index: {error}") from None
    files = sorted({file for name, file in index.weight_map.items() if not is_absent(name)})
    for file in files:
        check_listed(file, str(path))
    return files


def read_limited(path: Path, limit: int) -> bytes:
    """Return a file of at most `limit` bytes. Raises CheckpointError."""
    if is_file(path):
        check_readable(path)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise CheckpointError(f"{path} is larger than {limit} bytes")
    return data
