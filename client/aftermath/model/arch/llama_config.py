"""The shape of a Llama with a MatFormer FFN: what its `config.json` may say, and the tensors that follow from it.

Decided
- What a key means, and what holds when it is absent, is what `LlamaForCausalLM` of transformers 5 makes of it. Keys by
  which that computes something else than `model.arch.llama` are refused by name; all others change nothing and pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from aftermath.model.arch.transformer_config import IDEAS, TransformerConfig
from aftermath.model.config import ModelConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.llama import Llama


class LlamaConfig(TransformerConfig):
    """Hyper-parameters under their names in the Hugging Face `LlamaConfig`."""

    MODEL_TYPE: ClassVar[str] = "llama"
    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("silu", "swish")
    num_key_value_heads: int = Field(ge=1, le=1 << 10)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """As it says there. Raises ModelConfigError also when this is not a plain Llama."""
        if other := next((key for key in IDEAS if hf_config.get(key)), None):
            raise ModelConfigError(f"config.json: {other} is a NanoGPT's", 'set model_type to "nanogpt", or remove it')
        known = cls.known(hf_config)
        known.setdefault("num_key_value_heads", known.get("num_attention_heads"))
        return cls.checked(known)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Loads in any Hugging Face client."""
        return self.common_hf(tier) | {
            "architectures": ["LlamaForCausalLM"],
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
        }

    def build(self, tier: int, params: Mapping[str, Tensor]) -> Llama:
        """A Llama."""
        from aftermath.model.arch.llama import Llama

        return Llama.of(self, tier, params)

    def deviation(self, name: str) -> float | None:
        """Norms are ones."""
        return None if "norm" in name else super().deviation(name)

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor a tier-k replica holds. A tied output head is not a tensor of its own."""
        hidden, ffn = self.hidden_size, self.width(tier)
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            shapes |= {
                prefix + "input_layernorm.weight": (hidden,),
                prefix + "self_attn.q_proj.weight": (queries, hidden),
                prefix + "self_attn.k_proj.weight": (keys, hidden),
                prefix + "self_attn.v_proj.weight": (keys, hidden),
                prefix + "self_attn.o_proj.weight": (hidden, queries),
                prefix + "post_attention_layernorm.weight": (hidden,),
                prefix + "mlp.gate_proj.weight": (ffn, hidden),
                prefix + "mlp.up_proj.weight": (ffn, hidden),
                prefix + "mlp.down_proj.weight": (hidden, ffn),
            }
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes
