"""What a `config.json` may say before transformers reads it: bounds of its numbers, and no key that brings code.

Any member of tier 0 names a run's next checkpoint, and any peer answers what a model is. So the file may be a
stranger's, and transformers allocates and counts what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from aftermath.base.errors import shown
from aftermath.model.config import ModelConfigError

_BOUNDS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(words), most)
    for words, most in (
        (r"vocab", 1 << 22),
        (r"theta|_base$|_freq$|_id$|seed|_limit$|mask_value", 1 << 40),
        (r"position|length|seq|ctx|context|window", 1 << 24),
        (r"label", 1 << 16),
        (r"head_dim|headdim", 1 << 12),
        (r"size|dim|width|inner|rank|channels", 1 << 20),
        (r"layer|depth|block|stage", 1 << 8),  # transformers takes about 2 s to build 256
        (r"expert|head|group", 1 << 12),
    )
)
"""The most that a key with one of these words may say. The first line that matches counts."""
_MOST = 1 << 20
"""The most that any other key may say."""
_CODE = frozenset({"auto_map", "quantization_config", "compression_config", "attribute_map", "sub_configs"})
"""Keys by which transformers imports code, of the checkpoint or a package; the last two are parts of its classes."""
_DOWNLOADS = frozenset({"backbone", "use_timm_backbone", "use_pretrained_backbone"})
"""Keys by which transformers fetches another model."""
_CHOICES = frozenset({"use_kernels", "kernel_config", "trust_remote_code", "code_revision"})
"""Keys, with those of `_is_choice`, that choose the code of a function and not the function."""


def without_choices(said: Any) -> Any:
    """The document without keys that choose which code computes the model, at any depth.

    `attn_implementation: "owner/name"` makes transformers run a kernel of the Hub where `kernels` is installed.
    """
    if isinstance(said, dict):
        return {key: without_choices(value) for key, value in said.items() if not _is_choice(key)}
    if isinstance(said, list):
        return [without_choices(value) for value in said]
    return said


def check_document(said: Any) -> None:
    """Raise ModelConfigError for a number that is larger than of any model, and for a key that brings code."""
    for key, value in _entries(said, ""):
        if (key in _CODE and value) or _is_choice(key):
            raise ModelConfigError(
                f"config.json: {key[:60] if key.isprintable() else shown(key)} is not supported",
                "Use a checkpoint of plain weights without code of its own",
            )
        if (key in _DOWNLOADS and value) or (key == "model_type" and str(value).startswith("timm")):
            raise ModelConfigError(
                f"config.json: {shown(key)} {shown(value)} is not supported", "Use a model of text alone"
            )
        if isinstance(value, int | float) and value > (most := _most(key)):
            raise ModelConfigError(
                f"config.json: {shown(key)} is {shown(value)}, and at most {most} here", f"Correct {shown(key)}"
            )


def _is_choice(key: str) -> bool:
    return key.startswith("_") or "implementation" in key or key in _CHOICES


def _most(key: str) -> int:
    return next((most for words, most in _BOUNDS if words.search(key.lower())), _MOST)


def _entries(said: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every value of a document with its key, at any depth; the parts of a list have the list's key."""
    if isinstance(said, dict):
        for name, value in said.items():
            yield name, value
            if isinstance(value, dict | list):
                yield from _entries(value, name)
    elif isinstance(said, list):
        for value in said:
            if isinstance(value, dict | list):
                yield from _entries(value, key)
            else:
                yield key, value
