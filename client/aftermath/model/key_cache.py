"""The keys and values of earlier tokens, which generation keeps instead of computing them again."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


# The cache holds keys and values after rotation and before query heads share them. A text starts at
# position 0 and only grows, or is cut back, up to `ModelConfig.cacheable`: beyond it, positions
# would change cached values.
class LayerCache:
    """The keys and values of one layer."""

    def __init__(self) -> None:
        self._cached: tuple[Tensor, Tensor] | None = None

    def joined(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, n, T, K]. Return those of all tokens seen, [B, n, S, K]."""
        if self._cached is not None:
            key, value = (
                torch.cat((self._cached[0], key), 2),
                torch.cat((self._cached[1], value), 2),
            )
        self._cached = key, value
        return key, value

    def cut(self, length: int) -> None:
        """Forget all but the first tokens."""
        if self._cached is not None:
            self._cached = self._cached[0][:, :, :length], self._cached[1][:, :, :length]


class TextCache:
    """The keys and values of one batch of texts, for all layers. Has no gradients."""

    def __init__(self) -> None:
        self.length = 0
        """Tokens seen."""
        self._layers: defaultdict[str, LayerCache] = defaultdict(LayerCache)

    def of_layer(self, name: str) -> LayerCache:
        """Return the cache of a layer by its name in the network."""
        return self._layers[name]

    def cut(self, length: int) -> None:
        """Forget all but the first tokens."""
        if length < self.length:
            self.length = length
            for layer in self._layers.values():
                layer.cut(length)
