"""What a network keeps of a text that it has seen, so that the tokens after it are computed without it.

Decided
- Kept are the keys and values of every layer, turned by their positions, before query heads share them.
- A text that is kept begins at position 0 and only grows, or is cut back. How long it may become is the config's to say
  (`ModelConfig.cacheable`): beyond that, positions would change what is kept.

Shapes in comments: B sequences, n heads, T tokens of this pass, S tokens seen with them, K head dimension.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class LayerCache:
    """One layer's."""

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Tensor] | None = None

    def joined(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, n, S, K] of all tokens seen, these [B, n, T, K] being the last."""
        if self._kept is not None:
            key, value = torch.cat((self._kept[0], key), 2), torch.cat((self._kept[1], value), 2)
        self._kept = key, value
        return key, value

    def cut(self, length: int) -> None:
        """Forget all but the first tokens."""
        if self._kept is not None:
            self._kept = self._kept[0][:, :, :length], self._kept[1][:, :, :length]


class Cache:
    """A network's, of one batch of texts. Without gradients."""

    def __init__(self) -> None:
        self.length = 0
        """Tokens seen."""
        self._layers: defaultdict[str, LayerCache] = defaultdict(LayerCache)

    def of_layer(self, name: str) -> LayerCache:
        """That of a layer, under the name that the network has for it."""
        return self._layers[name]

    def cut(self, length: int) -> None:
        """Forget all but the first tokens."""
        if length < self.length:
            self.length = length
            for layer in self._layers.values():
                layer.cut(length)


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Causal attention [B, n, T, K] of queries [B, n, T, K], whose tokens are the last of those of the keys."""
    length, seen = query.shape[2], key.shape[2]
    if length == seen:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, **options)
    mask = None  # the last token sees all
    if length > 1:
        mask = torch.ones(length, seen, dtype=torch.bool, device=query.device).tril(seen - length)  # [T, S]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)
