"""An architecture: every token sees the mean of the embeddings so far, then one feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.config import ModelConfig, sized
from aftermath.model.key_cache import TextCache
from aftermath.model.network import LanguageModel

SMALL = {"model_type": "averaging", "vocab_size": 257, "hidden_size": 16, "intermediate_size": 32}


class AveragingConfig(ModelConfig):
    """The hyper-parameters, and the tensors that they make."""

    MODEL_TYPE: ClassVar[str] = "averaging"
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"averaging-tiny": SMALL}
    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {"up.weight": 0, "down.weight": 1}
    hidden_size: int = sized("hidden_size")

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        return cls.checked(cls.known(hf_config))

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        return self.common_hf(tier)

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        table = (self.vocab_size, self.hidden_size)
        return {
            "model.embed_tokens.weight": table,
            "model.up.weight": (self.width(tier), self.hidden_size),
            "model.down.weight": (self.hidden_size, self.width(tier)),
            "lm_head.weight": table,
        }

    def deviation(self, name: str) -> float:
        return 0.2

    @property
    def cacheable(self) -> int:
        return 0  # no text is continued from a cache

    def build(self, tier: int, params: Mapping[str, Tensor]) -> LanguageModel:
        return Averaging.of(self, tier, params)


class Averaging(LanguageModel):
    """The network of one tier. B sequences, T tokens, D hidden size, V vocabulary."""

    def __init__(self, config: AveragingConfig, tier: int) -> None:
        super().__init__(config, tier)
        width = config.width(tier)
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
                "up": nn.Linear(config.hidden_size, width, bias=False),
                "down": nn.Linear(width, config.hidden_size, bias=False),
            }
        )
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def body(self, input_ids: Tensor, cache: TextCache | None = None) -> Tensor:
        embedded = self.model["embed_tokens"](input_ids)  # [B, T, D]
        counts = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)
        hidden = embedded + embedded.cumsum(1) / counts[:, None]
        out: Tensor = hidden + self.model["down"](F.relu(self.model["up"](hidden)))
        return out

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        return logits
