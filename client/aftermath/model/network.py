"""What every network offers: logits, a loss, and a replica's own tensors as its parameters.

Shapes in comments: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.config import ModelConfig


class LanguageModel(nn.Module, ABC):
    """The causal language model of one tier, usually made by its config's `build`."""

    def __init__(self, config: ModelConfig, tier: int) -> None:
        super().__init__()
        self.config, self.tier = config, tier

    @classmethod
    def of(cls, config: Any, tier: int, params: Mapping[str, Tensor]) -> Self:
        """A network that uses these very tensors (no copy). Raises RuntimeError if names or shapes do not fit."""
        with torch.device("meta"):
            model = cls(config, tier)
        model.load_state_dict(dict(params), strict=True, assign=True)
        return model.requires_grad_(True)

    @abstractmethod
    def forward(self, input_ids: Tensor) -> Tensor:
        """Next-token logits [B, T, V] of token ids [B, T]."""

    def loss(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in fp32, nats per token, of predicting tokens 1..T-1 of [B, T] from those before them.

        With `labels` [B, T], those are predicted instead, each at its own place; -100 (as in torch) is not learnt, and
        the mean is over the others, or 0 where there is none.
        """
        logits = self(input_ids[:, :-1]).float()  # [B, T-1, V]
        if labels is None:
            return F.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())
        wanted = labels[:, 1:].flatten()
        return F.cross_entropy(logits.flatten(0, 1), wanted, reduction="sum") / (wanted >= 0).sum().clamp(min=1)
