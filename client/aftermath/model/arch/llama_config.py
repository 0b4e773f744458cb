"""The shape of a Llama with a MatFormer FFN: what its `config.json` may say, and the tensors that follow from it.

Decided
- What a key means, and what holds when it is absent, is what `LlamaForCausalLM` of transformers 5 makes of it. Keys by
  which that computes something else than `model.arch.llama` are refused by name; all others change nothing and pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from aftermath.model.arch.transformer_config import TransformerConfig
from aftermath.model.config import ModelConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.llama import Llama

# Keys that transformers reads for a Llama as well, and that make it another function whatever they say.
_OTHER_FUNCTIONS = (
    "quantization_config",
    "compression_config",
    "per_layer_config",
    "sliding_window",
    "attention_chunk_size",
)


class LlamaConfig(TransformerConfig):
    """Hyper-parameters under their names in the Hugging Face `LlamaConfig`."""

    MODEL_TYPE: ClassVar[str] = "llama"
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
        _refuse_other_functions(hf_config)
        known = cls.known(hf_config)
        known.setdefault("num_key_value_heads", known.get("num_attention_heads"))
        if (theta := _rope_theta(hf_config)) is not None:
            known["rope_theta"] = theta
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


def _refuse_other_functions(hf_config: Mapping[str, Any]) -> None:
    """Raise if `LlamaForCausalLM` would compute, or train, another function of this file than the network here."""
    for key, default, allowed in (
        ("hidden_act", "silu", ("silu", "swish")),
        ("attention_bias", False, (False,)),
        ("mlp_bias", False, (False,)),
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


def _rope_theta(hf_config: Mapping[str, Any]) -> Any:
    """The base of the rotary positions as the file states it, None where it does not.

    Raises ModelConfigError for positions that are scaled, and for two tables that contradict each other.
    """
    tables = {key: hf_config[key] for key in ("rope_scaling", "rope_parameters") if hf_config.get(key)}
    bases = {}
    for key, table in tables.items():
        if not isinstance(table, Mapping) or any(isinstance(value, Mapping) for value in table.values()):
            raise ModelConfigError(f"config.json: {key} is not one table of numbers", "use a plain Llama")
        kind = table.get("rope_type", table.get("type", "default"))
        if kind != "default":
            raise _unsupported(f"{key} of type", kind, "default")
        if table.get("partial_rotary_factor") not in (None, 1):
            raise _unsupported(f"{key}.partial_rotary_factor", table["partial_rotary_factor"], 1.0)
        bases[key] = table.get("rope_theta", hf_config.get("rope_theta", 10000.0))
    if len(bases) == 2 and bases["rope_scaling"] != bases["rope_parameters"]:
        raise ModelConfigError(
            f"config.json: rope_theta is {bases['rope_parameters']!r} by rope_parameters and "
            f"{bases['rope_scaling']!r} by rope_scaling",
            "leave one of the two tables in the file",
        )
    return next(iter(bases.values()), hf_config.get("rope_theta"))


def _unsupported(key: str, value: object, wanted: object) -> ModelConfigError:
    return ModelConfigError(
        f"config.json: {key} {value!r} is not supported", f"this client computes {key} {wanted!r} only"
    )
