"""The shape of a DeepSeek V2 or V3 with MatFormer feed-forwards: what its `config.json` may say.

Decided
- V3's `e_score_correction_bias` only chooses experts. It moves by how often each is chosen, as
  published, and by nothing else (`optim.balance`). No auxiliary loss is computed.
- Where transformers and the published model differ (V2 with `norm_topk_prob`, V3 with it and one
  expert a token, `moe_layer_freq`), the key is refused. What published files have in addition to
  plain weights is `model/published.py`'s.
- transformers multiplies all experts at once, where rows of the experts' matrices must be multiples
  of 16 bytes. Where they are not, as in a narrow tier, the file asks for one expert after the
  other: nobody has to know of it.

Sources: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.base.errors import shown
from aftermath.model.arch.deepseek_shape import DeepseekShape
from aftermath.model.arch.known_keys import refuse_contradictions, refuse_ideas
from aftermath.model.arch.rope_config import rope_table
from aftermath.model.arch.scaled_config import POSITIONS, fields_of_positions
from aftermath.model.config import ModelConfigError, sized, stored_tier
from aftermath.model.tiers import KEY

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.deepseek import Deepseek


_BIASES = ("attention_bias", "mlp_bias", "sliding_window")
_AT_ONCE = 8  # numbers of bf16 in 16 bytes; what fp32 needs is half of it


class DeepseekConfig(DeepseekShape):
    """What V2 and V3 have in common."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("silu", "swish")
    ONLY: ClassVar[Mapping[str, Any]]
    """Keys of which this client computes one value, which is also what their absence means."""
    ALIASES: ClassVar[Mapping[str, str]]
    """Other names of keys in transformers, which takes one for the other (its `attribute_map`)."""

    @model_validator(mode="after")
    def _positions_are_known(self) -> Self:
        if self.rope_type not in ("default", "yarn"):
            raise ValueError(f"positions of type {shown(self.rope_type)} are not supported")
        return self

    @property
    def groups(self) -> tuple[int, int]:
        """Into how many groups experts are cut, and of how many groups a token may choose."""
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
        refuse_ideas(hf_config)
        refuse_contradictions(hf_config, cls.ALIASES)
        derived = {"num_key_value_heads": "num_attention_heads", "head_dim": "qk_rope_head_dim"}
        only_these = {"moe_layer_freq": 1, **cls.ONLY} | {key: hf_config.get(of) for key, of in derived.items()}
        for key, only in only_these.items():
            if None not in (only, hf_config.get(key)) and hf_config[key] != only:
                raise ModelConfigError(
                    f"config.json: {key} {shown(hf_config[key])} is not supported",
                    f"This client computes {key} {only!r} only",
                )
        if other := next((key for key in _BIASES if hf_config.get(key)), None):
            raise ModelConfigError(
                f"config.json: {other} {shown(hf_config[other])} is not supported",
                f"This client computes no {other} here",
            )
        if (kind := rope_table(hf_config, 1)["rope_type"]) not in ("default", "yarn"):
            raise ModelConfigError(
                f"config.json: positions of type {shown(kind)} are not supported",
                "This client computes plain ones here, and yarn",
            )
        known = cls.known(dict(hf_config) | {"head_dim": hf_config.get("qk_rope_head_dim") or 2})
        tier, size = stored_tier(hf_config)[0], known.get("moe_intermediate_size")
        if isinstance(size, int) and not isinstance(size, bool) and not hf_config.get(KEY):
            known["moe_intermediate_size"] = size << tier
        if "q_lora_rank" not in hf_config:
            raise ModelConfigError(
                "config.json: q_lora_rank is missing", "Say the rank of the queries, or null for none"
            )
        known = {key: value for key, value in known.items() if key not in POSITIONS}
        longest = known.get("max_position_embeddings", cls.model_fields["max_position_embeddings"].default)
        return cls.checked(known | fields_of_positions(hf_config, longest))

    @property
    def attention_scale(self) -> float | None:
        """What products of queries and keys are multiplied with, where it is not 1/sqrt of their
        size.

        Source: DeepSeek's own use of yarn (arXiv 2309.00071), as published with DeepSeek-V2.
        """
        if self.rope_type != "yarn" or not self.rope_mscale_all_dim or self.rope_factor <= 1:
            return None
        louder = 0.1 * self.rope_mscale_all_dim * math.log(self.rope_factor) + 1.0
        return float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5 * louder * louder)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Loads in any Hugging Face client."""
        name = self.MODEL_TYPE.replace("deepseek_v", "DeepseekV")
        rows = {self.hidden_size, self.expert_width(tier), *self.shape(tier).moe_intermediate_size}
        apart = {"experts_implementation": "eager"} if any(row % _AT_ONCE for row in rows) else {}
        said = {key: value for key, value in self.common_hf(tier).items() if key not in POSITIONS}
        return (
            said
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
        """A DeepSeek."""
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
        """The bias of the choice."""
        return name.endswith(".e_score_correction_bias")

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
