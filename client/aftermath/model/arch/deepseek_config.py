"""The config of DeepSeek V2 and V3: their sizes, tensors, tiers and `config.json`.

Tensors have the names of published checkpoints: each matrix of each expert is one tensor.
Sources: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.base.errors import short_repr
from aftermath.model.arch.known_keys import refuse_contradictions, refuse_nanogpt_keys
from aftermath.model.arch.rope_config import rope_table
from aftermath.model.arch.transformer_config import POSITIONS, ScaledConfig, fields_of_positions
from aftermath.model.config import (
    ModelConfig,
    ModelConfigError,
    TensorPlan,
    check_divisible,
    sized,
    stored_tier,
)
from aftermath.model.tier_shapes import KEY, TierShape

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.deepseek import Deepseek


_MOST_EXPERTS = 1 << 16
"""Maximum of layers times experts per layer: 61 x 256 = 15,616 for DeepSeek V3.

Each expert has three named tensors.
"""


# Tier k keeps the first 1/2^k of the hidden units of dense layers, routed experts and shared
# experts (one feed-forward), unless `matformer_tiers` names widths. Every tier has whole attention
# and gates. Tensor parallelism cuts the same hidden units, and heads. Every rank holds the gates
# and the tensors that heads share.
class DeepseekShape(ScaledConfig):
    """The sizes, under Hugging Face's names. `head_dim` is `qk_rope_head_dim`, as there."""

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
    # As published, only the counts of choices move the bias (`optim.moe_bias`). There is no
    # auxiliary loss.
    CHOICE_BIAS: ClassVar[bool] = False
    """Whether experts are chosen by their scores and a bias."""
    CUTS: ClassVar[tuple[str, ...]] = ("layers", "intermediate_size", "moe_intermediate_size")
    BASE: ClassVar[tuple[str, ...]] = (
        "num_hidden_layers",
        "first_k_dense_replace",
        "moe_intermediate_size",
    )

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
            raise ValueError(
                f"qk_rope_head_dim {self.qk_rope_head_dim} is odd; rotary embeddings need an even one"
            )
        if self.num_hidden_layers * self.n_routed_experts > _MOST_EXPERTS:
            raise ValueError(
                f"{self.num_hidden_layers} layers with {self.n_routed_experts} experts each have more than "
                f"{_MOST_EXPERTS} experts"
            )
        if self.hidden_size % self.num_attention_heads:  # transformers refuses it too
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads"
            )
        return self

    @property
    def dense_layers(self) -> int:
        """Number of first layers with one feed-forward and no experts."""
        raise NotImplementedError

    def halved(self, tier: int) -> TierShape:
        """Return dense layers, then expert layers. Raises WidthNotDivisible for either."""
        check_divisible(self.moe_intermediate_size, tier, "moe_intermediate_size")
        dense = min(self.dense_layers, self.num_hidden_layers)
        experts = [(0, 0, self.moe_intermediate_size >> tier)] * (self.num_hidden_layers - dense)
        return TierShape.of([(ModelConfig.width(self, tier), 0, 0)] * dense + experts)

    def width(self, tier: int) -> int:
        """Return the hidden units of the widest dense layer, or the file's value if no layer is
        dense.
        """
        widest = max(self.shape(tier).intermediate_size)
        return widest or (
            self.intermediate_size if self.matformer_tiers else ModelConfig.width(self, tier)
        )

    def expert_width(self, tier: int) -> int:
        """Return the hidden units of the widest expert of a tier."""
        widest = max(self.shape(tier).moe_intermediate_size)
        return widest or self.moe_intermediate_size >> (0 if self.matformer_tiers else tier)

    def _sizes(self, tier: int) -> dict[str, int]:
        shape = self.shape(tier)
        return {
            "num_hidden_layers": len(shape.layers),
            "first_k_dense_replace": sum(size > 0 for size in shape.intermediate_size)
            if tier
            else self.dense_layers,
            "moe_intermediate_size": self.expert_width(tier),
        }

    def tensor_plan(self, tier: int) -> TensorPlan | str:
        """Cut heads and hidden units of dense layers and experts. Ranks share the rest."""
        shape = self.shape(tier)
        units = self.ELASTIC_DIMS
        divided = {
            "heads": (self.num_attention_heads,),
            "hidden units": shape.intermediate_size,
            "hidden units of an expert": shape.moe_intermediate_size,
        }
        return TensorPlan(
            {**self.HEAD_DIMS, **{f"mlp.{name}": dim for name, dim in units.items()}},
            divided,
            inner={
                f"{of}.{name}": dim
                for of in ("experts.*", "shared_experts")
                for name, dim in units.items()
            },
            spread=("self_attn.shared_key", "mlp.given"),
            summed=("mlp.made",),
        )

    def deviation(self, name: str) -> float | None:
        """Return the deviation, smaller for residual writers; None for norms and biases."""
        if "norm" in name or name.endswith("bias"):
            return None
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        return self.initializer_range / math.sqrt(2 * self.num_hidden_layers if residual else 1)

    def constant(self, name: str) -> float:
        """Return 1 for norms and 0 for the choice bias."""
        return 0.0 if name.endswith("bias") else 1.0

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of a tier-k replica. A tied output head has no tensor."""
        hidden = self.hidden_size
        shape = self.shape(tier)
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden)
        }
        for layer in shape.layers:
            prefix = f"model.layers.{layer}."
            width, _ = shape.of_layer(layer)
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
            shapes.update(
                self._feed_forward(prefix + "mlp.shared_experts.", width * self.n_shared_experts)
            )
            for number in range(self.n_routed_experts):
                shapes.update(self._feed_forward(f"{prefix}mlp.experts.{number}.", width))
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def _attention(self, prefix: str) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        heads = self.num_attention_heads
        rank = self.q_lora_rank
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        shapes: dict[str, tuple[int, ...]] = {prefix + "q_proj.weight": (queries, hidden)}
        if rank is not None:
            shapes = {
                prefix + "q_a_proj.weight": (rank, hidden),
                prefix + "q_a_layernorm.weight": (rank,),
                prefix + "q_b_proj.weight": (queries, rank),
            }
        return shapes | {
            prefix + "kv_a_proj_with_mqa.weight": (
                self.kv_lora_rank + self.qk_rope_head_dim,
                hidden,
            ),
            prefix + "kv_a_layernorm.weight": (self.kv_lora_rank,),
            prefix + "kv_b_proj.weight": (
                heads * (self.qk_nope_head_dim + self.v_head_dim),
                self.kv_lora_rank,
            ),
            prefix + "o_proj.weight": (hidden, heads * self.v_head_dim),
        }

    def _feed_forward(self, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        return {
            prefix + "gate_proj.weight": (width, self.hidden_size),
            prefix + "up_proj.weight": (width, self.hidden_size),
            prefix + "down_proj.weight": (self.hidden_size, width),
        }


_BIASES = ("attention_bias", "mlp_bias", "sliding_window")
# transformers multiplies all experts at once, which needs matrix rows in multiples of 16 bytes. For
# other widths, the exported file makes it compute one expert at a time.
_AT_ONCE = 8  # bf16 numbers in 16 bytes; fp32 needs half as many


class DeepseekConfig(DeepseekShape):
    """The keys that V2 and V3 share."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("silu", "swish")
    # The published model and transformers differ for other values: V2 with `norm_topk_prob`, V3
    # with one expert per token, and `moe_layer_freq`.
    ONLY: ClassVar[Mapping[str, Any]]
    """Keys with only one supported value, which is also their default."""
    ALIASES: ClassVar[Mapping[str, str]]
    """Aliases of keys in transformers (its `attribute_map`)."""

    @model_validator(mode="after")
    def _positions_are_known(self) -> Self:
        if self.rope_type not in ("default", "yarn"):
            raise ValueError(f"positions of type {short_repr(self.rope_type)} are not supported")
        return self

    @property
    def groups(self) -> tuple[int, int]:
        """Return the number of groups of experts, and how many of them a token may use."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        groups, chosen = self.groups
        if self.n_routed_experts % groups:
            raise ValueError(
                f"n_routed_experts {self.n_routed_experts} is not a multiple of n_group {groups}"
            )
        if chosen > groups:
            raise ValueError(f"topk_group {chosen} is more than n_group {groups}")
        if self.num_experts_per_tok > (most := chosen * (self.n_routed_experts // groups)):
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} is more than the {most} experts that topk_group allows"
            )
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """Return the config of a `config.json`. Raises ModelConfigError."""
        refuse_nanogpt_keys(hf_config)
        refuse_contradictions(hf_config, cls.ALIASES)
        derived = {"num_key_value_heads": "num_attention_heads", "head_dim": "qk_rope_head_dim"}
        only_these = {"moe_layer_freq": 1, **cls.ONLY} | {
            key: hf_config.get(of) for key, of in derived.items()
        }
        for key, only in only_these.items():
            if None not in (only, hf_config.get(key)) and hf_config[key] != only:
                raise ModelConfigError(
                    f"config.json: {key} {short_repr(hf_config[key])} is not supported",
                    f"This client supports only {key} {only!r}",
                )
        if other := next((key for key in _BIASES if hf_config.get(key)), None):
            raise ModelConfigError(
                f"config.json: {other} {short_repr(hf_config[other])} is not supported",
                f"This client does not support {other}",
            )
        if (kind := rope_table(hf_config, 1)["rope_type"]) not in ("default", "yarn"):
            raise ModelConfigError(
                f"config.json: positions of type {short_repr(kind)} are not supported",
                "This client supports plain and yarn positions here",
            )
        known = cls.known(dict(hf_config) | {"head_dim": hf_config.get("qk_rope_head_dim") or 2})
        tier = stored_tier(hf_config)[0]
        size = known.get("moe_intermediate_size")
        if isinstance(size, int) and not isinstance(size, bool) and not hf_config.get(KEY):
            known["moe_intermediate_size"] = size << tier
        if "q_lora_rank" not in hf_config:
            raise ModelConfigError(
                "config.json: q_lora_rank is missing",
                "Set it to the rank of the queries, or to null for none",
            )
        known = {key: value for key, value in known.items() if key not in POSITIONS}
        longest = known.get(
            "max_position_embeddings", cls.model_fields["max_position_embeddings"].default
        )
        return cls.checked(known | fields_of_positions(hf_config, longest))

    @property
    def attention_scale(self) -> float | None:
        """Return the factor of the products of queries and keys, or None for 1/sqrt of their size.

        Source: DeepSeek's own use of yarn (arXiv 2309.00071), as published with DeepSeek-V2.
        """
        if self.rope_type != "yarn" or not self.rope_mscale_all_dim or self.rope_factor <= 1:
            return None
        louder = 0.1 * self.rope_mscale_all_dim * math.log(self.rope_factor) + 1.0
        return float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5 * louder * louder)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Return a `config.json` that any Hugging Face client loads."""
        name = self.MODEL_TYPE.replace("deepseek_v", "DeepseekV")
        rows = {self.hidden_size, self.expert_width(tier), *self.shape(tier).moe_intermediate_size}
        apart = {"experts_implementation": "eager"} if any(row % _AT_ONCE for row in rows) else {}
        document = {
            key: value for key, value in self.common_hf(tier).items() if key not in POSITIONS
        }
        return (
            document
            | self.positions()
            | apart
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

    def build(self, tier: int, params: Mapping[str, Tensor]) -> Deepseek:
        """Return the network with these tensors."""
        from aftermath.model.arch.deepseek import Deepseek

        return Deepseek.of(self, tier, params)


class DeepseekV2Config(DeepseekConfig):
    """Experts by softmax, from all of them or from the groups with the best single experts."""

    MODEL_TYPE: ClassVar[str] = "deepseek_v2"
    ONLY: ClassVar[Mapping[str, Any]] = {"scoring_func": "softmax", "norm_topk_prob": False}
    ALIASES: ClassVar[Mapping[str, str]] = {"num_experts": "n_routed_experts"}
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    n_group: int = Field(1, ge=1, le=512)
    topk_group: int = Field(1, ge=1, le=512)
    first_k_dense_replace: int = Field(0, ge=0, le=512)

    @property
    def groups(self) -> tuple[int, int]:
        """Return one group unless the choice is limited to groups."""
        return (
            (self.n_group, self.topk_group)
            if self.topk_method == "group_limited_greedy"
            else (1, 1)
        )

    @property
    def dense_layers(self) -> int:
        """Return the number of dense layers. The default is 0."""
        return self.first_k_dense_replace


class DeepseekV3Config(DeepseekConfig):
    """Experts by sigmoid and a bias, from the groups whose two best experts are best together."""

    MODEL_TYPE: ClassVar[str] = "deepseek_v3"
    ONLY: ClassVar[Mapping[str, Any]] = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    ALIASES: ClassVar[Mapping[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    }
    CHOICE_BIAS: ClassVar[bool] = True
    max_position_embeddings: int = sized("max_position_embeddings", 4096)
    n_group: int = Field(8, ge=1, le=512)
    topk_group: int = Field(4, ge=1, le=512)
    first_k_dense_replace: int = Field(3, ge=0, le=512)
    routed_scaling_factor: float = Field(2.5, gt=0, le=1e4)
    norm_topk_prob: bool = True
    rope_interleave: bool = True

    def balances(self, name: str) -> bool:
        """Return whether a tensor is the choice bias."""
        return name.endswith(".e_score_correction_bias")

    @property
    def groups(self) -> tuple[int, int]:
        """Return the number of groups and how many of them a token may use."""
        return self.n_group, self.topk_group

    @property
    def dense_layers(self) -> int:
        """Return the number of dense layers. The default is 3."""
        return self.first_k_dense_replace

    @model_validator(mode="after")
    def _choice_fits(self) -> Self:
        if self.n_routed_experts < 2 * self.n_group:
            raise ValueError(
                f"n_group {self.n_group} is too high: every group needs at least 2 experts"
            )
        if self.norm_topk_prob and self.num_experts_per_tok == 1:
            raise ValueError("norm_topk_prob needs num_experts_per_tok of at least 2")
        return self
