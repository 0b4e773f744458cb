"""What the networks written here have in common: a decoder between an embedding and a head, tied or not.

Shapes in comments: B sequences, T tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.arch.transformer_config import TransformerConfig
from aftermath.model.key_cache import Cache
from aftermath.model.network import LanguageModel


class Transformer(LanguageModel):
    """`decoder(input_ids, through, cache)` makes [B, T, D] of token ids [B, T], and has the embedding as
    `embed_tokens`.
    """

    model: Any
    """The decoder."""

    def __init__(self, config: TransformerConfig, tier: int, decoder: nn.Module) -> None:
        super().__init__(config, tier)
        self.model = decoder
        if not config.tie_word_embeddings:
            self.lm_head = linear(config.hidden_size, config.vocab_size)

    def body(self, input_ids: Tensor, cache: Cache | None = None) -> Tensor:
        hidden: Tensor = self.model(input_ids, self.through, cache)
        if cache is not None:
            cache.length += input_ids.shape[1]
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        table = self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return F.linear(hidden, table.weight)


def linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    """A matrix, without a bias unless it is asked for."""
    return nn.Linear(inputs, outputs, bias=bias)
