"""The config that all transformers with rotary positions share: layers, heads and tiers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.base.errors import short_repr
from aftermath.model.arch.rope_config import ROPE_FIELDS, rope_fields, rope_parameters, rope_table
from aftermath.model.config import ModelConfig, ModelConfigError, TensorPlan, sized, stored_tier
from aftermath.model.published_checkpoints import form_of
from aftermath.model.tier_shapes import KEY, TierShape, tier_shapes

# Keys that transformers also reads, and that change the function with any value.
_OTHER_FUNCTIONS = (
    "compression_config",
    "per_layer_config",
    "attention_chunk_size",
)
JUDGED = frozenset(
    {
        *("hidden_act", "attention_dropout", "partial_rotary_factor", "is_causal", "layer_types"),
        *("quantization_config", "num_nextn_predict_layers", "use_cache", *_OTHER_FUNCTIONS),
    }
)
"""Keys without a field. `known` rejects values that describe another function."""


class TransformerConfig(ModelConfig):
    """Hyper-parameters under their Hugging Face names."""

    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {  # MatFormer FFN (arXiv 2310.07707)
        "mlp.gate_proj.weight": 0,
        "mlp.up_proj.weight": 0,
        "mlp.down_proj.weight": 1,
        "mlp.gate_proj.bias": 0,
        "mlp.up_proj.bias": 0,
    }

    HEAD_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {
        "self_attn.q_proj.weight": 0,
        "self_attn.k_proj.weight": 0,
        "self_attn.v_proj.weight": 0,
        "self_attn.o_proj.weight": 1,
        "self_attn.q_proj.bias": 0,
        "self_attn.k_proj.bias": 0,
        "self_attn.v_proj.bias": 0,
    }
    """`ELASTIC_DIMS` for tensors with one part per head, used where tiers differ in heads."""
    CUTS: ClassVar[tuple[str, ...]] = ("layers", "intermediate_size", "num_key_value_heads")
    """Parts that an entry of `matformer_tiers` may name."""
    PARTIAL: ClassVar[tuple[str, ...]] = ()
    """Parameters that every rank holds but uses only for its own heads (`TensorPlan.partial`)."""
    LATER: ClassVar[frozenset[str]] = frozenset({KEY})

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ()
    """Supported values of `hidden_act`."""
    BASE: ClassVar[tuple[str, ...]] = (
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    """Keys with the tier's value in a tier's file; `matformer_base` has the full model's."""

    hidden_size: int = sized("hidden_size")
    num_hidden_layers: int = sized("num_hidden_layers")
    num_attention_heads: int = sized("num_attention_heads")
    head_dim: int = sized("head_dim")
    rms_norm_eps: float = Field(1e-6, gt=0, le=1e-2)
    rope_theta: float = Field(10000.0, ge=1, le=1e12)
    initializer_range: float = Field(0.02, gt=0, le=1)
    matformer_tiers: tuple[TierShape, ...] = ()
    """Shapes of tiers 1, 2, ...; empty if each tier halves the width."""

    @model_validator(mode="after")
    def _head_is_even(self) -> Self:
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need an even one")
        return self

    @classmethod
    def known(cls, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields. By default, `head_dim` is the hidden size divided by the heads.

        Raises ModelConfigError if it does not divide, and for keys that make transformers compute
        another function than the networks here.
        """
        _refuse_other_functions(hf_config, cls.ACTIVATIONS)
        known = super().known(hf_config) | _base(hf_config, cls.BASE)
        if (theta := rope_table(hf_config, 1).get("rope_theta")) is not None:
            known["rope_theta"] = theta
        heads = known.get("num_attention_heads")
        hidden = known.get("hidden_size")
        if (
            "head_dim" not in known
            and isinstance(heads, int)
            and isinstance(hidden, int)
            and heads > 0
        ):
            if hidden % heads:
                raise ModelConfigError(
                    f"config.json: hidden_size {hidden} is not a multiple of {heads} attention heads",
                    "Choose a number of heads that divides it",
                )
            known["head_dim"] = hidden // heads
        return known

    @classmethod
    def checked(cls, known: Mapping[str, Any]) -> Self:
        """Return the config with these fields. Raises ModelConfigError."""
        whole = super().checked({key: value for key, value in known.items() if key != KEY})
        if not known.get(KEY):
            return whole
        return whole.model_copy(update={KEY: tier_shapes(known[KEY], whole.shape(0), cls.CUTS)})

    @property
    def key_heads(self) -> int:
        """Return the heads of keys and values."""
        return self.num_attention_heads

    def shape(self, tier: int) -> TierShape:
        """Return a tier's layers, with the width and heads of each. Raises ModelConfigError."""
        if not tier or not self.matformer_tiers:
            return self.halved(tier)
        if tier > len(self.matformer_tiers):
            raise ModelConfigError(
                f"config.json: {KEY} has no entry for tier {tier}",
                f"Use at most {1 + len(self.matformer_tiers)} tiers, or add an entry for tier {tier}",
            )
        return self.matformer_tiers[tier - 1]

    def halved(self, tier: int) -> TierShape:
        """Return a tier's shape if tiers halve the width. Raises WidthNotDivisible."""
        return TierShape.of([(super().width(tier), self.key_heads, 0)] * self.num_hidden_layers)

    def width(self, tier: int) -> int:
        """Return the FFN hidden units of a tier's widest layer. Raises ModelConfigError."""
        return max(self.shape(tier).intermediate_size)

    def size(self, tier: int) -> int:
        """Return the width, or the units of all layers if the file names its tiers."""
        return self.shape(tier).units if self.matformer_tiers else self.width(tier)

    def kept(self, tier: int) -> str:
        """Describe what a tier keeps: its width, and its layers and heads if the file names its
        tiers.
        """
        if not self.matformer_tiers:
            return super().kept(tier)
        shape = self.shape(tier)
        parts = (
            ("layers", ", ".join(map(str, shape.layers))),
            ("FFN width", _span(shape.intermediate_size)),
            ("width of experts", _span(shape.moe_intermediate_size)),
            ("key heads", _span(shape.num_key_value_heads)),
        )
        return "; ".join(f"{what} {which}" for what, which in parts if which)

    @property
    def heads_differ(self) -> bool:
        """Return whether a tier has fewer heads than the full model in a layer that it keeps."""
        return any(
            set(tier.num_key_value_heads) - {0, self.key_heads} for tier in self.matformer_tiers
        )

    def elastic_dim(self, name: str) -> Literal[0, 1] | None:
        """Return the dimension of hidden units, or of heads where tiers differ in heads."""
        if self.heads_differ:
            for suffix, dim in self.HEAD_DIMS.items():
                if name.endswith("." + suffix):
                    return dim
        return super().elastic_dim(name)

    def tensor_plan(self, tier: int) -> TensorPlan | str:
        """Cut along heads and hidden units."""
        shape = self.shape(tier)  # query heads are a multiple of the key heads
        divided = {
            "key/value heads": shape.num_key_value_heads,
            "hidden units": shape.intermediate_size,
        }
        return TensorPlan({**self.HEAD_DIMS, **self.ELASTIC_DIMS}, divided, self.PARTIAL)

    def stored_name(self, name: str, tier: int) -> str:
        """Return the name with the layer renumbered: a tier's files number its layers from 0."""
        if not tier or not (match := _LAYER.match(name)):
            return name
        return f"{match[1]}{self.shape(tier).layers.index(int(match[2]))}{match[3]}"

    def common_hf(self, tier: int) -> dict[str, Any]:
        """Return all fields of a tier, with the keys that describe the full model."""
        document = super().common_hf(tier)
        del document[KEY]
        if not self.matformer_tiers:
            return document
        document[KEY] = [entry.model_dump(mode="json") for entry in self.matformer_tiers]
        return document | ({_BASE: self._sizes(0)} | self._sizes(tier) if tier else {})

    def agreed(self, hf_config: Mapping[str, Any]) -> Self:
        """Return this config if a tier's file agrees with it. Raises ModelConfigError."""
        tier, _ = stored_tier(hf_config)
        fields = (
            self._sizes(tier) | {"intermediate_size": self.width(tier)}
            if self.matformer_tiers
            else {}
        )
        for key, size in fields.items():
            if hf_config.get(key, size) != size:
                raise ModelConfigError(
                    f"config.json: {key} is {short_repr(hf_config[key])}, but {size} according to {KEY}",
                    "Export the tier again",
                )
        return self

    def _sizes(self, tier: int) -> dict[str, int]:
        """Return the sizes of a tier that `BASE` names."""
        shape = self.shape(tier)
        heads = self.num_attention_heads // self.key_heads
        sizes = {
            "num_hidden_layers": len(shape.layers),
            "num_attention_heads": max(shape.num_key_value_heads) * heads,
            "num_key_value_heads": max(shape.num_key_value_heads),
        }
        return {key: size for key, size in sizes.items() if key in type(self).model_fields}

    def deviation(self, name: str) -> float | None:
        """Return `initializer_range`, divided by sqrt(2 layers) where a layer writes to the
        residual stream (as in GPT-2).
        """
        residual = name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight"))
        return self.initializer_range / math.sqrt(2 * self.num_hidden_layers if residual else 1)


def _span(sizes: tuple[int, ...]) -> str:
    """Return the nonzero sizes as text: one number if all are equal, else each of them."""
    sizes = tuple(size for size in sizes if size)
    if not sizes:
        return ""
    return f"{sizes[0]:,}" if len(set(sizes)) == 1 else " ".join(f"{size:,}" for size in sizes)


_BASE = "matformer_base"
_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")


def _base(hf_config: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the full model's sizes that a tier's file names. Raises ModelConfigError."""
    if not hf_config.get(KEY) or not stored_tier(hf_config)[0]:
        return {}
    base = hf_config.get(_BASE)
    if not isinstance(base, dict) or any(key not in keys for key in base):
        raise ModelConfigError(
            f"config.json: {_BASE} must be a table of {', '.join(keys)}", "Export the tier again"
        )
    return dict(base)


def _refuse_other_functions(hf_config: Mapping[str, Any], activations: tuple[str, ...]) -> None:
    """Raise ModelConfigError for keys that give another function than the networks here."""
    for key, default, allowed in (
        ("hidden_act", None, (*activations, None)),
        ("attention_dropout", 0.0, (0.0,)),
        ("partial_rotary_factor", 1.0, (1.0,)),
    ):
        value = default if hf_config.get(key) is None else hf_config[key]
        if value not in allowed:
            raise _unsupported(key, value, allowed[0])
    if not hf_config.get("is_causal", True):
        raise _unsupported("is_causal", hf_config["is_causal"], True)
    kinds = hf_config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise _unsupported("layer_types", kinds, "full_attention")
    form_of(hf_config)
    for key in _OTHER_FUNCTIONS:
        if hf_config.get(key):
            raise ModelConfigError(
                f"config.json: {key} is not supported",
                f"Remove {key} if the model was trained without it, or use another checkpoint",
            )


def _unsupported(key: str, value: object, required: object) -> ModelConfigError:
    fix = f"Remove {key}" if required is None else f"This client supports only {key} {required!r}"
    return ModelConfigError(f"config.json: {key} {short_repr(value)} is not supported", fix)


POSITIONS = frozenset(ROPE_FIELDS.values()) | {"rope_type"}
"""Fields of scaled positions, which a file keeps in a table."""


class ScaledConfig(TransformerConfig):
    """A config with scaled positions as fields."""

    # Plain positions are left out of a schema, so schemas of runs before scaled positions keep
    # their hash.
    LATER: ClassVar[frozenset[str]] = TransformerConfig.LATER | POSITIONS
    rope_type: Literal["default", "linear", "dynamic", "llama3", "yarn"] = "default"
    rope_factor: float = Field(1.0, ge=1, le=1e6)
    rope_original_length: int = Field(0, ge=0, le=1 << 24)
    rope_low_freq_factor: float = Field(0.0, ge=0, le=1e6)
    rope_high_freq_factor: float = Field(0.0, ge=0, le=1e6)
    rope_beta_fast: float = Field(32.0, gt=0, le=1e6)
    rope_beta_slow: float = Field(1.0, gt=0, le=1e6)
    rope_attention_factor: float = Field(0.0, ge=0, le=1e3)
    """YaRN's attention factor. 0 uses the paper's formula."""
    rope_mscale: float = Field(0.0, ge=0, le=1e3)
    rope_mscale_all_dim: float = Field(0.0, ge=0, le=1e3)
    rope_truncate: bool = True

    @model_validator(mode="after")
    def _positions_fit(self) -> Self:
        if self.rope_type in ("dynamic", "llama3", "yarn") and not self.rope_original_length:
            raise ValueError("rope_parameters: original_max_position_embeddings must be at least 1")
        if (
            self.rope_type == "llama3"
            and not 0 < self.rope_low_freq_factor < self.rope_high_freq_factor
        ):
            raise ValueError(
                "rope_parameters: low_freq_factor must be above 0 and below high_freq_factor"
            )
        if self.rope_type == "dynamic" and self.head_dim < 4:
            raise ValueError(f"head_dim {self.head_dim} is too small for dynamic positions")
        if self.rope_type == "yarn" and self.rope_theta <= 1:
            raise ValueError("rope_theta must be above 1 for yarn positions")
        return self

    @property
    def cacheable(self) -> int:
        """Return the longest cacheable text: dynamic positions change beyond the original
        length.
        """
        window = super().cacheable
        return min(window, self.rope_original_length) if self.rope_type == "dynamic" else window

    def positions(self) -> dict[str, Any]:
        """Return the table of scaled positions as in a file; empty for plain ones."""
        return (
            {}
            if self.rope_type == "default"
            else {"rope_parameters": rope_parameters(self.model_dump())}
        )


def fields_of_positions(hf_config: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Return a file's positions as fields of a model with texts of up to `longest` tokens.

    Raises ModelConfigError.
    """
    table = rope_table(hf_config, longest)
    if (
        table["rope_type"] == "dynamic"
    ):  # transformers uses the model's longest text and ignores the table's length
        table = table | {"original_max_position_embeddings": longest}
    return rope_fields(table)
