"""The tensors of a DeepSeek V2 or V3, and how tiers and ranks cut them.

Decided
- Tensors have the names they have in checkpoints on the Hub: every expert's matrices are tensors of their own. So a
  strip of an expert is a matrix like any other, for blocks and for Muon.
- Tier k holds the first 1/2^k of the hidden units of every dense layer, of every routed expert, and of the shared
  experts, which are one feed-forward. Attention and gates are whole. So it is with the widths that tiers name
  (`model/tiers.py`): those of dense layers, and those of experts, of each of which shared experts have as much.
- Ranks cut the same hidden units, and heads. What heads share is on every rank, and gates are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.model.arch.scaled_config import ScaledConfig
from aftermath.model.config import ModelConfig, check_divisible
from aftermath.model.tensor_plan import TensorPlan
from aftermath.model.tiers import TierShape


class DeepseekShape(ScaledConfig):
    """Sizes, under Hugging Face's names. `head_dim` is `qk_rope_head_dim`, as there."""

    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {
        "gate_proj.weight": 0,
        "up_proj.weight": 0,
        "down_proj.weight": 1,
    }
    HEAD_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {
        "self_attn.q_proj.weight": 0,
        "self_attn.q_b_proj.weight": 0,
        "self_attn.kv_b_proj.weight": 0,
        "self_attn.o_proj.weight": 1,
    }
    CHOICE_BIAS: ClassVar[bool] = False
    """Whether experts are chosen by their scores and a bias."""
    CUTS: ClassVar[tuple[str, ...]] = ("layers", "intermediate_size", "moe_intermediate_size")
    BASE: ClassVar[tuple[str, ...]] = ("num_hidden_layers", "first_k_dense_replace", "moe_intermediate_size")

    moe_intermediate_size: int = Field(ge=1, le=1 << 20)
    n_routed_experts: int = Field(ge=1, le=512)
    n_shared_experts: int = Field(ge=1, le=64)
    num_experts_per_tok: int = Field(ge=1, le=512)
    routed_scaling_factor: float = Field(1.0, gt=0, le=1e4)
    q_lora_rank: int | None = Field(None, ge=1, le=1 << 16)
    kv_lora_rank: int = Field(ge=1, le=1 << 16)
    qk_nope_head_dim: int = Field(ge=1, le=1 << 12)
    qk_rope_head_dim: int = Field(ge=2, le=1 << 12)
    v_head_dim: int = Field(ge=1, le=1 << 12)

    @model_validator(mode="after")
    def _head_is_even(self) -> Self:
        if self.qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim {self.qk_rope_head_dim} is odd; rotary embeddings need an even one")
        if self.hidden_size % self.num_attention_heads:  # transformers refuses it too
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        return self

    @property
    def dense_layers(self) -> int:
        """Number of first layers with one feed-forward and no experts."""
        raise NotImplementedError

    def halved(self, tier: int) -> TierShape:
        """Dense layers, then those of experts. Raises WidthNotDivisible also where an expert has no whole width."""
        check_divisible(self.moe_intermediate_size, tier, "moe_intermediate_size")
        dense = min(self.dense_layers, self.num_hidden_layers)
        experts = [(0, 0, self.moe_intermediate_size >> tier)] * (self.num_hidden_layers - dense)
        return TierShape.of([(ModelConfig.width(self, tier), 0, 0)] * dense + experts)

    def width(self, tier: int) -> int:
        """Hidden units of the widest dense layer; where there is none, what its file says of them."""
        held = max(self.shape(tier).intermediate_size)
        return held or (self.intermediate_size if self.matformer_tiers else ModelConfig.width(self, tier))

    def expert_width(self, tier: int) -> int:
        """The same of an expert."""
        held = max(self.shape(tier).moe_intermediate_size)
        return held or self.moe_intermediate_size >> (0 if self.matformer_tiers else tier)

    def _sizes(self, tier: int) -> dict[str, int]:
        shape = self.shape(tier)
        return {
            "num_hidden_layers": len(shape.layers),
            "first_k_dense_replace": sum(size > 0 for size in shape.intermediate_size) if tier else self.dense_layers,
            "moe_intermediate_size": self.expert_width(tier),
        }

    def tensor_plan(self, tier: int) -> TensorPlan | str:
        """Heads, and the hidden units of dense layers and of every expert. What heads share is on every rank."""
        held, units = self.shape(tier), self.ELASTIC_DIMS
        divided = {
            "heads": (self.num_attention_heads,),
            "hidden units": held.intermediate_size,
            "hidden units of an expert": held.moe_intermediate_size,
        }
        return TensorPlan(
            {**self.HEAD_DIMS, **{f"mlp.{name}": dim for name, dim in units.items()}},
            divided,
            inner={f"{of}.{name}": dim for of in ("experts.*", "shared_experts") for name, dim in units.items()},
            spread=("self_attn.shared_key", "mlp.given"),
            summed=("mlp.made",),
        )

    def deviation(self, name: str) -> float | None:
        """Norms are ones and the bias of the choice is zero; what writes to the residual stream begins smaller."""
        if "norm" in name or name.endswith("bias"):
            return None
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        return self.initializer_range / math.sqrt(2 * self.num_hidden_layers if residual else 1)

    def constant(self, name: str) -> float:
        """Norms, and the bias of the choice."""
        return 0.0 if name.endswith("bias") else 1.0

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor a tier-k replica holds. A tied output head is not a tensor of its own."""
        hidden, kept = self.hidden_size, self.shape(tier)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in kept.layers:
            prefix = f"model.layers.{layer}."
            width, _ = kept.of_layer(layer)
            shapes |= {
                prefix + "input_layernorm.weight": (hidden,),
                prefix + "post_attention_layernorm.weight": (hidden,),
            }
            shapes.update(self._attention(prefix + "self_attn."))
            if layer < self.dense_layers:
                shapes.update(self._feed_forward(prefix + "mlp.", width))
                continue
            shapes[prefix + "mlp.gate.weight"] = (self.n_routed_experts, hidden)
            if self.CHOICE_BIAS:
                shapes[prefix + "mlp.gate.e_score_correction_bias"] = (self.n_routed_experts,)
            shapes.update(self._feed_forward(prefix + "mlp.shared_experts.", width * self.n_shared_experts))
            for number in range(self.n_routed_experts):
                shapes.update(self._feed_forward(f"{prefix}mlp.experts.{number}.", width))
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def _attention(self, prefix: str) -> dict[str, tuple[int, ...]]:
        hidden, heads, rank = self.hidden_size, self.num_attention_heads, self.q_lora_rank
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        shapes: dict[str, tuple[int, ...]] = {prefix + "q_proj.weight": (queries, hidden)}
        if rank is not None:
            shapes = {
                prefix + "q_a_proj.weight": (rank, hidden),
                prefix + "q_a_layernorm.weight": (rank,),
                prefix + "q_b_proj.weight": (queries, rank),
            }
        return shapes | {
            prefix + "kv_a_proj_with_mqa.weight": (self.kv_lora_rank + self.qk_rope_head_dim, hidden),
            prefix + "kv_a_layernorm.weight": (self.kv_lora_rank,),
            prefix + "kv_b_proj.weight": (heads * (self.qk_nope_head_dim + self.v_head_dim), self.kv_lora_rank),
            prefix + "o_proj.weight": (hidden, heads * self.v_head_dim),
        }

    def _feed_forward(self, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        return {
            prefix + "gate_proj.weight": (width, self.hidden_size),
            prefix + "up_proj.weight": (width, self.hidden_size),
            prefix + "down_proj.weight": (self.hidden_size, width),
        }
