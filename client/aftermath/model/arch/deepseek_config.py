"""The shape of a DeepSeek V2 or V3 with MatFormer feed-forwards: what its `config.json` may say, and its tensors.

Decided
- Tensors have the names they have in checkpoints on the Hub: every expert's matrices are tensors of their own. So a
  strip of an expert is a matrix like any other, for blocks and for Muon.
- Tier k holds the first 1/2^k of the hidden units of every dense layer, of every routed expert, and of the shared
  experts, which are one feed-forward. Attention and gates are whole. So it is with the widths that tiers name
  (`model/tiers.py`): those of dense layers, and those of experts, of each of which shared experts have as much.
- V3's `e_score_correction_bias` only chooses experts and has no gradient. Members have no exact way to count together
  which experts are chosen, so no rule of balance moves it; like every tensor it is hashed, shared, and subject to a
  run's weight decay. No auxiliary loss is computed.
- Where transformers and the published model differ (V2 with `norm_topk_prob`, V3 with it and one expert a token,
  `moe_layer_freq`), the key is refused. Layers that predict further tokens are refused by their tensors' names.

Sources: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.base.errors import shown
from aftermath.model.arch.rope_config import rope_table
from aftermath.model.arch.scaled_config import POSITIONS, ScaledConfig, fields_of_positions
from aftermath.model.arch.transformer_config import IDEAS
from aftermath.model.config import ModelConfig, ModelConfigError, check_divisible, stored_tier
from aftermath.model.tensor_plan import TensorPlan
from aftermath.model.tiers import KEY, TierShape

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.deepseek import Deepseek


_BIASES = ("attention_bias", "mlp_bias", "sliding_window")


class DeepseekConfig(ScaledConfig):
    """What V2 and V3 have in common, under Hugging Face's names. `head_dim` is `qk_rope_head_dim`, as there."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("silu", "swish")
    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {
        "gate_proj.weight": 0,
        "up_proj.weight": 0,
        "down_proj.weight": 1,
    }
    CUTS: ClassVar[tuple[str, ...]] = ("layers", "intermediate_size", "moe_intermediate_size")
    BASE: ClassVar[tuple[str, ...]] = ("num_hidden_layers", "first_k_dense_replace", "moe_intermediate_size")
    ONLY: ClassVar[Mapping[str, Any]]
    """Keys of which this client computes one value, which is also what their absence means."""

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

    @model_validator(mode="after")
    def _positions_are_known(self) -> Self:
        if self.rope_type not in ("default", "yarn"):
            raise ValueError(f"positions of type {shown(self.rope_type)} are not supported")
        return self

    @property
    def groups(self) -> tuple[int, int]:
        """Into how many groups experts are cut, and of how many groups a token may choose."""
        raise NotImplementedError

    @property
    def dense_layers(self) -> int:
        """So many first layers have one feed-forward and no experts."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        groups, chosen = self.groups
        if self.n_routed_experts % groups:
            raise ValueError(f"n_routed_experts {self.n_routed_experts} is not a multiple of n_group {groups}")
        if chosen > groups:
            raise ValueError(f"topk_group {chosen} is more than n_group {groups}")
        if self.num_experts_per_tok > (most := chosen * (self.n_routed_experts // groups)):
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} is more than the {most} that can be chosen"
            )
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """As it says there."""
        if other := next((key for key in IDEAS if hf_config.get(key)), None):
            raise ModelConfigError(f"config.json: {other} is a NanoGPT's", 'set model_type to "nanogpt", or remove it')
        only_these = {"moe_layer_freq": 1, "num_key_value_heads": hf_config.get("num_attention_heads"), **cls.ONLY}
        for key, only in only_these.items():
            if hf_config.get(key) is not None and hf_config[key] != only:
                raise ModelConfigError(
                    f"config.json: {key} {shown(hf_config[key])} is not supported",
                    f"this client computes {key} {only!r} only",
                )
        if other := next((key for key in _BIASES if hf_config.get(key)), None):
            raise ModelConfigError(
                f"config.json: {other} {shown(hf_config[other])} is not supported",
                f"this client computes no {other} here",
            )
        if (kind := rope_table(hf_config)["rope_type"]) not in ("default", "yarn"):
            raise ModelConfigError(
                f"config.json: positions of type {shown(kind)} are not supported",
                "this client computes plain ones here, and yarn",
            )
        known = cls.known(dict(hf_config) | {"head_dim": hf_config.get("qk_rope_head_dim") or 2})
        tier, size = stored_tier(hf_config)[0], known.get("moe_intermediate_size")
        if isinstance(size, int) and not isinstance(size, bool) and not hf_config.get(KEY):
            known["moe_intermediate_size"] = size << tier
        if "q_lora_rank" not in hf_config:
            raise ModelConfigError(
                "config.json: q_lora_rank is missing", "say the rank of the queries, or null for none"
            )
        known = {key: value for key, value in known.items() if key not in POSITIONS}
        return cls.checked(known | fields_of_positions(hf_config, known))

    @property
    def attention_scale(self) -> float | None:
        """What products of queries and keys are multiplied with, where it is not 1/sqrt of their size.

        Source: DeepSeek's own use of yarn (arXiv 2309.00071), as published with DeepSeek-V2.
        """
        if self.rope_type != "yarn" or not self.rope_mscale_all_dim or self.rope_factor <= 1:
            return None
        louder = 0.1 * self.rope_mscale_all_dim * math.log(self.rope_factor) + 1.0
        return float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5 * louder * louder)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Loads in any Hugging Face client."""
        name = self.MODEL_TYPE.replace("deepseek_v", "DeepseekV")
        said = {key: value for key, value in self.common_hf(tier).items() if key not in POSITIONS}
        return (
            said
            | self.positions()
            | dict(self.ONLY)
            | {
                "architectures": [f"{name}ForCausalLM"],
                "hidden_act": "silu",
                "attention_bias": False,
                "num_key_value_heads": self.num_attention_heads,
                "moe_intermediate_size": self.expert_width(tier),
                "moe_layer_freq": 1,
            }
        )

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
        """Not yet."""
        del tier
        return "nothing here cuts its heads, which share a latent vector, and its experts"

    def build(self, tier: int, params: Mapping[str, Tensor]) -> Deepseek:
        """A DeepSeek."""
        from aftermath.model.arch.deepseek import Deepseek

        return Deepseek.of(self, tier, params)

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
            if self.MODEL_TYPE == DeepseekV3Config.MODEL_TYPE:
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


class DeepseekV2Config(DeepseekConfig):
    """Experts by softmax, from all of them or from the groups with the best single experts."""

    MODEL_TYPE: ClassVar[str] = "deepseek_v2"
    ONLY: ClassVar[Mapping[str, Any]] = {"scoring_func": "softmax", "norm_topk_prob": False}
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    n_group: int = Field(1, ge=1, le=512)
    topk_group: int = Field(1, ge=1, le=512)
    first_k_dense_replace: int = Field(0, ge=0, le=512)

    @property
    def groups(self) -> tuple[int, int]:
        """One group unless choice is limited to groups."""
        return (self.n_group, self.topk_group) if self.topk_method == "group_limited_greedy" else (1, 1)

    @property
    def dense_layers(self) -> int:
        """None unless it says so."""
        return self.first_k_dense_replace


class DeepseekV3Config(DeepseekConfig):
    """Experts by sigmoid and a bias, from the groups whose two best experts are best together."""

    MODEL_TYPE: ClassVar[str] = "deepseek_v3"
    ONLY: ClassVar[Mapping[str, Any]] = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    n_group: int = Field(8, ge=1, le=512)
    topk_group: int = Field(4, ge=1, le=512)
    first_k_dense_replace: int = Field(3, ge=0, le=512)
    routed_scaling_factor: float = Field(2.5, gt=0, le=1e4)
    norm_topk_prob: bool = True
    rope_interleave: bool = True

    @property
    def groups(self) -> tuple[int, int]:
        """As it says."""
        return self.n_group, self.topk_group

    @property
    def dense_layers(self) -> int:
        """Three unless it says otherwise."""
        return self.first_k_dense_replace

    @model_validator(mode="after")
    def _choice_fits(self) -> Self:
        if self.n_routed_experts < 2 * self.n_group:
            raise ValueError(f"n_group {self.n_group} leaves fewer than two experts to a group")
        if self.norm_topk_prob and self.num_experts_per_tok == 1:
            raise ValueError("num_experts_per_tok 1 leaves norm_topk_prob nothing to divide; say at least 2, or false")
        return self
