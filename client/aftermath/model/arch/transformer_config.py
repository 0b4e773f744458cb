"""What transformers with rotary positions have in common: layers, heads, and how large their first weights are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.model.config import ModelConfig, ModelConfigError


class TransformerConfig(ModelConfig):
    """Hyper-parameters under the names that Hugging Face has for them."""

    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {  # of a MatFormer FFN (arXiv 2310.07707)
        "mlp.gate_proj.weight": 0,
        "mlp.up_proj.weight": 0,
        "mlp.down_proj.weight": 1,
    }

    hidden_size: int = Field(ge=2, le=1 << 16)
    num_hidden_layers: int = Field(ge=1, le=512)
    num_attention_heads: int = Field(ge=1, le=1 << 10)
    head_dim: int = Field(ge=2, le=1 << 12)
    rms_norm_eps: float = Field(1e-6, gt=0, le=1e-2)
    rope_theta: float = Field(10000.0, ge=1, le=1e12)
    initializer_range: float = Field(0.02, gt=0, le=1)

    @model_validator(mode="after")
    def _head_is_even(self) -> Self:
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need an even one")
        return self

    @classmethod
    def known(cls, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Heads share the hidden size where nothing else is said. Raises ModelConfigError if they cannot."""
        known = super().known(hf_config)
        heads, hidden = known.get("num_attention_heads"), known.get("hidden_size")
        if "head_dim" not in known and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            if hidden % heads:
                raise ModelConfigError(
                    f"config.json: hidden_size {hidden} is not a multiple of {heads} attention heads",
                    "choose a number of heads that divides it",
                )
            known["head_dim"] = hidden // heads
        return known

    def deviation(self, name: str) -> float | None:
        """As in GPT-2: `initializer_range`, divided by sqrt(2 layers) where a layer writes to the residual stream."""
        residual = name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight"))
        return self.initializer_range / math.sqrt(2 * self.num_hidden_layers if residual else 1)
