"""What transformers with rotary positions have in common: layers, heads, and how large their first weights are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.model.arch.rope_config import rope_table
from aftermath.model.config import ModelConfig, ModelConfigError

# Keys that transformers reads as well, and that make it another function whatever they say.
_OTHER_FUNCTIONS = (
    "quantization_config",
    "compression_config",
    "per_layer_config",
    "attention_chunk_size",
)
IDEAS = ("relu_squared", "qk_norm", "logit_softcap", "value_embeddings", "x0_residual", "unet_skips")
"""Keys of a NanoGPT alone."""


class TransformerConfig(ModelConfig):
    """Hyper-parameters under the names that Hugging Face has for them."""

    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {  # of a MatFormer FFN (arXiv 2310.07707)
        "mlp.gate_proj.weight": 0,
        "mlp.up_proj.weight": 0,
        "mlp.down_proj.weight": 1,
        "mlp.gate_proj.bias": 0,
        "mlp.up_proj.bias": 0,
    }

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ()
    """What `hidden_act` may say."""

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
        """Heads share the hidden size where nothing else is said. Raises ModelConfigError if they cannot, and for keys
        by which transformers would compute another function of this file than the networks here.
        """
        _refuse_other_functions(hf_config, cls.ACTIVATIONS)
        known = super().known(hf_config)
        if (theta := rope_table(hf_config).get("rope_theta")) is not None:
            known["rope_theta"] = theta
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


def _refuse_other_functions(hf_config: Mapping[str, Any], activations: tuple[str, ...]) -> None:
    """Raise for keys by which transformers computes, or trains, something else than the networks here."""
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
    for key in _OTHER_FUNCTIONS:
        if hf_config.get(key):
            raise ModelConfigError(
                f"config.json: {key} is not supported",
                f"use a checkpoint of plain weights, with layers all alike that see the whole text; or remove {key} if "
                "the model was trained without it",
            )


def _unsupported(key: str, value: object, wanted: object) -> ModelConfigError:
    fix = "leave it out" if wanted is None else f"this client computes {key} {wanted!r} only"
    return ModelConfigError(f"config.json: {key} {value!r} is not supported", fix)
