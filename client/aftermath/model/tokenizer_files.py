"""The files of a tokenizer: its begin and end tokens, and a copy without training limits.

`tokenizer.json` does not name the tokens that begin and end a text; the other files do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aftermath.base.bounded import Malformed, json_value
from aftermath.model.json_documents import MAX_CONFIG_BYTES, CheckpointError, read_limited

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
KNOWN_ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<EOS_TOKEN>",
    "<|eot_id|>",
)
"""The usual end-of-text tokens, for a tokenizer whose files name none."""
MAX_TOKENIZER_BYTES = 64 << 20
_NAME_ONE = "Name a tokenizer.json, or a folder that contains one"
_TEXTS = (TOKENIZER_CONFIG, SPECIAL_TOKENS)
_IDS = ("generation_config.json", "config.json")

IdOf = Callable[[str], int | None]


def files_of(place: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return a `tokenizer.json`, and its other files by name, which name the special tokens.

    `place` is the file or its folder. Raises CheckpointError, also for other tokenizer formats.
    """
    path = place / TOKENIZER_FILE if place.is_dir() else place
    if not path.is_file():
        raise CheckpointError(f"cannot read {path}: there is no such file", _NAME_ONE)
    data = read_limited(path, MAX_TOKENIZER_BYTES)
    if data.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path} is a git-lfs pointer, not the file itself", "Run git lfs pull"
        )
    if path.suffix == ".model":
        convert = f"AutoTokenizer.from_pretrained('{path.parent}').save_pretrained('{path.parent}')"
        raise CheckpointError(
            f"{path} is a SentencePiece model, not a tokenizer.json",
            f'Convert it: python -c "from transformers import AutoTokenizer; {convert}"',
        )
    others = [path.with_name(name) for name in (*_TEXTS, *_IDS)]
    return data, {one.name: read_limited(one, MAX_CONFIG_BYTES) for one in others if one.is_file()}


def same_tokens(one: bytes, other: bytes) -> bool:
    """Return whether two files have equal models and added tokens. Broken files count as equal."""
    try:
        documents = [json_value(data, MAX_TOKENIZER_BYTES) for data in (one, other)]
        first, second = (
            (document["model"], document.get("added_tokens")) for document in documents
        )
    except (Malformed, TypeError, KeyError, AttributeError):
        return True
    return bool(first == second)


def without_limits(tokenizer: bytes) -> bytes:
    """Return a `tokenizer.json` without truncation and padding.

    Raises Malformed if it is not a JSON object.
    """
    document = json_value(tokenizer, MAX_TOKENIZER_BYTES)
    if not isinstance(document, dict):
        raise Malformed("it is not a JSON object")
    if document.get("truncation") is None and document.get("padding") is None:
        return tokenizer
    return json.dumps(document | {"truncation": None, "padding": None}, ensure_ascii=False).encode()


def begin_id(companions: Mapping[str, bytes], id_of: IdOf) -> int | None:
    """Return the id of the begin token, or None. `companions` are the other files by name."""
    return next(_named(companions, "bos_token", id_of), None)


def end_id(companions: Mapping[str, bytes], id_of: IdOf) -> int | None:
    """Return the id of the end token, or None. `companions` are the other files by name."""
    token_id = next(_named(companions, "eos_token", id_of), None)
    if token_id is not None:
        return token_id
    return next((known for known in map(id_of, KNOWN_ENDS) if known is not None), None)


def with_end_token(tokenizer_config: bytes | None, end_token: str | None) -> bytes:
    """Return a `tokenizer_config.json` with this end-of-text token and all other keys."""
    document = _object(tokenizer_config)
    token = document.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if tokenizer_config is not None and (end_token is None or text == end_token):
        return tokenizer_config
    document = {"tokenizer_class": "PreTrainedTokenizerFast"} | document
    if end_token is not None:
        document["eos_token"] = end_token
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def _named(companions: Mapping[str, bytes], key: str, id_of: IdOf) -> Iterator[int]:
    """Yield the ids of a special token that the files name, the most specific file first."""
    for name in _TEXTS:
        token = _object(companions.get(name)).get(key)
        text = token.get("content") if isinstance(token, dict) else token
        number = id_of(text) if isinstance(text, str) else None
        if number is not None:
            yield number
    for name in _IDS:
        number = _object(companions.get(name)).get(f"{key}_id")
        first = number[0] if isinstance(number, list) and number else number
        if type(first) is int and first >= 0:
            yield first


def _object(data: bytes | None) -> dict[str, Any]:
    """Return the JSON object in a file. It is empty if the file is missing or has none."""
    try:
        document = json_value(data) if data is not None else {}
    except Malformed:
        return {}
    return document if isinstance(document, dict) else {}
