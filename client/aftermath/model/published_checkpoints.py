"""How published checkpoints differ from plain weights: fp8 with scales, and extra layers.

This module imports no torch, because configs use it. Source: DeepSeek-V3 (arXiv 2412.19437) and
the README_WEIGHTS.md of its weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aftermath.base.errors import short_repr
from aftermath.model.config import ModelConfigError

SCALES = "_scale_inv"
"""Suffix of the name of a tensor's scales."""
_BUFFERS = r"(rotary_emb\.inv_freq|\.attn\.(bias|masked_bias)|\.attention\.(bias|masked_bias))$"
"""Names of buffers that transformers before 4.40 saved: frequencies and causal masks."""
_LARGEST_BLOCK = 1 << 16
_MOST_FURTHER = 16


# fp8 weights (e4m3, one scale per block) become fp32 while they are read; no other quantisation is
# supported. Layers that predict further tokens are skipped by name, as many as `config.json` lists;
# other unknown layers are errors. Saved checkpoints are plain.
@dataclass(frozen=True)
class Form:
    """The format of published files, in addition to the model's shapes."""

    block: tuple[int, int] | None = None
    """Rows and columns that share a scale in fp8 tensors; None without fp8."""
    foreign: tuple[str, ...] = ()
    """Name prefixes of tensors that are not part of the model."""


PLAIN = Form()


class FileNames:
    """Maps names in a checkpoint's files to names of tensors.

    In a file that was saved from the base model, only the output head's name has the `prefix`.
    """

    def __init__(self, known: Collection[str], prefix: str, ignored: Iterable[str] = ()) -> None:
        self._known = known
        self._prefix = prefix
        self._ignored = re.compile("|".join([_BUFFERS, *ignored]))

    def tensor(self, listed: str) -> str | None:
        """Return the tensor of this name in a file, or None if the model has no such tensor."""
        if listed in self._known:
            return listed
        return prefixed if (prefixed := self._prefix + listed) in self._known else None

    def is_buffer(self, listed: str) -> bool:
        """Return whether the name is that of a buffer, which transformers ignores too."""
        return self._ignored.search(listed) is not None


def form_of(hf_config: Mapping[str, Any]) -> Form:
    """Return the format of the weight files that a `config.json` describes. Raises
    ModelConfigError.
    """
    return Form(_block(hf_config.get("quantization_config")), _foreign(hf_config))


def _block(quantization: object) -> tuple[int, int] | None:
    """Return the rows and columns of an fp8 block, or None without fp8."""
    if not quantization:
        return None
    if (
        isinstance(quantization, dict)
        and quantization.get("quant_method") == "fp8"
        and quantization.get("fmt", "e4m3") == "e4m3"
    ):
        match quantization.get("weight_block_size"):
            case [int(rows), int(columns)] if all(
                1 <= edge <= _LARGEST_BLOCK and not isinstance(edge, bool)
                for edge in (rows, columns)
            ):
                return rows, columns
    raise ModelConfigError(
        f"config.json: quantization_config {short_repr(quantization)} is not supported",
        "Use a checkpoint with plain weights, or with fp8 (e4m3) and a weight_block_size",
    )


def _foreign(hf_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the name prefixes of the layers that predict further tokens."""
    layers = hf_config.get("num_hidden_layers")
    further = hf_config.get("num_nextn_predict_layers")
    if further is None:
        return ()
    if (
        not isinstance(further, int)
        or isinstance(further, bool)
        or not 0 <= further <= _MOST_FURTHER
    ):
        raise ModelConfigError(
            f"config.json: num_nextn_predict_layers must be an integer from 0 to {_MOST_FURTHER},"
            f" not {short_repr(further)}",
            "Use the published file",
        )
    if not isinstance(layers, int):
        return ()
    return tuple(f"model.layers.{layers + number}." for number in range(further))
