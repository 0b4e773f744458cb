"""Rotary positions, and the decoder frame that all networks here share.

Source: RoPE (arXiv 2104.09864). Shapes in comments: B sequences, n heads, T tokens, D hidden
size, K turned dimensions of a head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.arch.transformer_config import TransformerConfig
from aftermath.model.key_cache import TextCache
from aftermath.model.network import LanguageModel


# Angles are computed in fp32 with the roundings of transformers 5, because long texts would show a
# difference. A dynamic scale depends on the length of the current text, so texts beyond the model's
# length are not cached (`ScaledConfig.cacheable`).
class Rope(Protocol):
    """The position fields of a config (`rope_config`)."""

    @property
    def rope_type(self) -> str: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def rope_factor(self) -> float: ...
    @property
    def rope_original_length(self) -> int: ...
    @property
    def rope_low_freq_factor(self) -> float: ...
    @property
    def rope_high_freq_factor(self) -> float: ...
    @property
    def rope_beta_fast(self) -> float: ...
    @property
    def rope_beta_slow(self) -> float: ...
    @property
    def rope_attention_factor(self) -> float: ...
    @property
    def rope_mscale(self) -> float: ...
    @property
    def rope_mscale_all_dim(self) -> float: ...
    @property
    def rope_truncate(self) -> bool: ...


class Rotation:
    """The position tables of a network. It keeps the tables of the last length."""

    def __init__(self, make: Callable[[int, torch.device], tuple[Tensor, Tensor]]) -> None:
        self._make = make
        self._key = (-1, torch.device("cpu"))
        self._tables: tuple[Tensor, Tensor] | None = None

    def after(self, position: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [T, K] of `length` tokens after the first `position` ones."""
        cosine, sine = self.of(position + length, device)
        return cosine[position:], sine[position:]

    def of(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosine and sine [T, K]."""
        if torch.compiler.is_compiling():  # a cache between passes would cause another compilation
            return self._make(length, device)
        if self._tables is None or self._key != (length, device):
            self._tables = self._make(length, device)
            self._key = (length, device)
        return self._tables


def rotary(head_dim: int, theta: float, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [T, K] of plain positions in Hugging Face's half-split layout."""
    return _angles(1.0 / _powers(head_dim, theta, device), length)


def scaled_rotary(
    rope: Rope, head_dim: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [T, K] of a config's positions."""
    theta = rope.rope_theta
    factor = rope.rope_factor
    if rope.rope_type == "dynamic":
        known = rope.rope_original_length
        stretch = factor * max(length, known) / known - (factor - 1)
        return rotary(head_dim, theta * stretch ** (head_dim / (head_dim - 2)), length, device)
    powers = _powers(head_dim, theta, device)
    frequencies = 1.0 / powers
    if rope.rope_type == "linear":
        return _angles(frequencies / factor, length)
    if rope.rope_type == "llama3":
        return _angles(_llama3(rope, frequencies), length)
    if rope.rope_type == "yarn":
        cosine, sine = _angles(_yarn(rope, powers, head_dim), length)
        loudness = _attention_factor(rope)
        return cosine * loudness, sine * loudness
    return _angles(frequencies, length)


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate [B, n, T, K] by position: dimension i pairs with i + K/2."""
    cosine, sine = rotation
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def _powers(head_dim: int, theta: float, device: torch.device) -> Tensor:
    half = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim  # [K/2]
    powers: Tensor = theta**half
    return powers


def _angles(frequencies: Tensor, length: int) -> tuple[Tensor, Tensor]:
    places = torch.arange(length, device=frequencies.device, dtype=torch.float32)
    angles = torch.outer(places, frequencies)  # [T, K/2]
    angles = torch.cat((angles, angles), dim=-1)  # [T, K]
    return angles.cos(), angles.sin()


def _llama3(rope: Rope, frequencies: Tensor) -> Tensor:
    """Return Llama 3.1's frequencies: long waves are stretched, with a smooth transition."""
    low = rope.rope_low_freq_factor
    high = rope.rope_high_freq_factor
    known = rope.rope_original_length
    waves = 2 * math.pi / frequencies
    stretched = torch.where(waves > known / low, frequencies / rope.rope_factor, frequencies)
    smooth = (known / waves - low) / (high - low)
    between = (1 - smooth) * stretched / rope.rope_factor + smooth * stretched
    return torch.where(~(waves < known / high) & ~(waves > known / low), between, stretched)


def _yarn(rope: Rope, powers: Tensor, head_dim: int) -> Tensor:
    """Return YaRN's frequencies (arXiv 2309.00071): stretched, plain, and a ramp between them."""

    def dimension(turns: float) -> float:
        """Return the dimension with `turns` turns in the length that the model knows."""
        ratio = math.log(rope.rope_original_length / (turns * 2 * math.pi))
        return head_dim * ratio / (2 * math.log(rope.rope_theta))

    low = dimension(rope.rope_beta_fast)
    high = dimension(rope.rope_beta_slow)
    if rope.rope_truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    places = torch.arange(head_dim // 2, dtype=torch.float32, device=powers.device)
    plain = 1 - torch.clamp((places - low) / span, 0, 1)
    return 1.0 / (rope.rope_factor * powers) * (1 - plain) + 1.0 / powers * plain


def _attention_factor(rope: Rope) -> float:
    """Return YaRN's attention factor, which multiplies cosine and sine."""

    def scale(mscale: float) -> float:
        return 1.0 if rope.rope_factor <= 1 else 0.1 * mscale * math.log(rope.rope_factor) + 1.0

    if rope.rope_attention_factor:
        return rope.rope_attention_factor
    if rope.rope_mscale and rope.rope_mscale_all_dim:
        return scale(rope.rope_mscale) / scale(rope.rope_mscale_all_dim)
    return scale(1.0)


class Transformer(LanguageModel):
    """A transformer around a decoder.

    `decoder(input_ids, through, cache)` maps token ids [B, T] to [B, T, D]. Its embedding is
    `embed_tokens`.
    """

    model: Any
    """The decoder."""

    def __init__(self, config: TransformerConfig, tier: int, decoder: nn.Module) -> None:
        super().__init__(config, tier)
        self.model = decoder
        if not config.tie_word_embeddings:
            self.lm_head = linear(config.hidden_size, config.vocab_size)

    def body(self, input_ids: Tensor, cache: TextCache | None = None) -> Tensor:
        hidden: Tensor = self.model(input_ids, self.through, cache)
        if cache is not None:
            cache.length += input_ids.shape[1]
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        table = self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return F.linear(hidden, table.weight)


def linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """Return a linear layer, by default without a bias."""
    return nn.Linear(inputs, outputs, bias=bias)
