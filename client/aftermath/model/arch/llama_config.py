"""The config of a Llama, Mistral, Qwen2 or Qwen3 with a MatFormer feed-forward.

Keys and their defaults have the meaning of transformers 5 for each family. Unsupported keys that
would change the function are refused by name; all others pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import model_validator

from aftermath.base.errors import short_repr
from aftermath.model.arch.known_keys import refuse_nanogpt_keys
from aftermath.model.arch.transformer_config import POSITIONS, ScaledConfig, fields_of_positions
from aftermath.model.config import ModelConfigError, sized

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.llama import Llama


class _Family(NamedTuple):
    """The defaults of transformers for one family."""

    architecture: str
    kv_heads: int | None
    head_dim: int | None
    longest: int
    window: str
    """Key that limits attention to a window."""
    tokens: bool
    """Whether token 1 begins a text and token 2 ends it."""


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family("LlamaForCausalLM", None, None, 2048, "sliding_window", True),
    "mistral": _Family("MistralForCausalLM", 8, None, 131_072, "sliding_window", True),
    "qwen2": _Family("Qwen2ForCausalLM", 32, None, 32_768, "use_sliding_window", False),
    "qwen3": _Family("Qwen3ForCausalLM", 32, 128, 32_768, "use_sliding_window", False),
}
_MISTRALS_WINDOW = 4096  # default of a Mistral file without the key
# Fields added after the first runs are left out of a schema at their defaults, so older schemas
# keep their hash.
_OWN = frozenset({"family", "attention_bias", "output_bias", "mlp_bias", "head_norm"})


class LlamaConfig(ScaledConfig):
    """Hyper-parameters under their names in the Hugging Face `LlamaConfig`, where it has them."""

    MODEL_TYPE: ClassVar[str] = "llama"
    MODEL_TYPES: ClassVar[tuple[str, ...]] = tuple(_FAMILIES)
    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("silu", "swish")
    LATER: ClassVar[frozenset[str]] = ScaledConfig.LATER | _OWN
    PARTIAL: ClassVar[tuple[str, ...]] = ("q_norm.weight", "k_norm.weight")
    num_key_value_heads: int = sized("num_key_value_heads")
    family: Literal["llama", "mistral", "qwen2", "qwen3"] = "llama"
    attention_bias: bool = False
    """Whether queries, keys and values have a bias."""
    output_bias: bool = False
    mlp_bias: bool = False
    head_norm: bool = False

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
        """Return the config of a `config.json`. Raises ModelConfigError, also for other models."""
        refuse_nanogpt_keys(hf_config)
        name = str(hf_config.get("model_type") or cls.MODEL_TYPE)
        family = _FAMILIES[name]
        _refuse_windows(hf_config, family)
        unsaid = (
            {"head_dim": family.head_dim}
            if family.head_dim and hf_config.get("head_dim") is None
            else {}
        )
        known = cls.known({**hf_config, **unsaid})
        known = {key: value for key, value in known.items() if key not in _OWN | POSITIONS}
        # null: as many as query heads
        kv_heads = None if "num_key_value_heads" in hf_config else family.kv_heads
        known.setdefault("num_key_value_heads", kv_heads or known.get("num_attention_heads"))
        known.setdefault("max_position_embeddings", family.longest)
        if not family.tokens:
            known = {"bos_token_id": None, "eos_token_id": None} | known
        positions = fields_of_positions(hf_config, known["max_position_embeddings"])
        return cls.checked(known | {"family": name} | _biases(hf_config, name) | positions)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Return a `config.json` that any Hugging Face client loads."""
        document = {
            key: value for key, value in self.common_hf(tier).items() if key not in _OWN | POSITIONS
        }
        document |= {
            "model_type": self.family,
            "architectures": [_FAMILIES[self.family].architecture],
        }
        document |= {"hidden_act": "silu"}
        if self.family in ("llama", "qwen3"):
            document["attention_bias"] = self.attention_bias
        if self.family == "llama":
            document["mlp_bias"] = self.mlp_bias
        if self.family != "llama":
            window = _FAMILIES[self.family].window
            document[window] = None if window == "sliding_window" else False
        return document | self.positions()

    @property
    def key_heads(self) -> int:
        """Return the number of key/value heads."""
        return self.num_key_value_heads

    def build(self, tier: int, params: Mapping[str, Tensor]) -> Llama:
        """Return the network with these tensors."""
        from aftermath.model.arch.llama import Llama

        return Llama.of(self, tier, params)

    def deviation(self, name: str) -> float | None:
        """Return the deviation of matrices, and None for norms and biases."""
        return None if "norm" in name or name.endswith(".bias") else super().deviation(name)

    def constant(self, name: str) -> float:
        """Return 1 for norms and 0 for biases."""
        return 0.0 if name.endswith(".bias") else 1.0

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of a tier-k replica. A tied output head has no tensor."""
        hidden = self.hidden_size
        shape = self.shape(tier)
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden)
        }
        for layer in shape.layers:
            prefix = f"model.layers.{layer}."
            ffn, heads = shape.of_layer(layer)
            keys = heads * self.head_dim
            queries = keys * (self.num_attention_heads // self.num_key_value_heads)
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
            biased = {
                "self_attn.q_proj": queries,
                "self_attn.k_proj": keys,
                "self_attn.v_proj": keys,
            }
            shapes |= {
                f"{prefix}{name}.bias": (size,)
                for name, size in biased.items()
                if self.attention_bias
            }
            shapes |= {f"{prefix}self_attn.o_proj.bias": (hidden,)} if self.output_bias else {}
            widths = {"gate_proj": ffn, "up_proj": ffn, "down_proj": hidden}
            shapes |= {
                f"{prefix}mlp.{name}.bias": (size,)
                for name, size in widths.items()
                if self.mlp_bias
            }
            normed = ("q_norm", "k_norm") if self.head_norm else ()
            shapes |= {f"{prefix}self_attn.{name}.weight": (self.head_dim,) for name in normed}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


def _biases(hf_config: Mapping[str, Any], family: str) -> dict[str, Any]:
    has_bias = _flag(hf_config, "attention_bias") if family in ("llama", "qwen3") else False
    return {
        "attention_bias": has_bias or family == "qwen2",
        "output_bias": has_bias,
        "mlp_bias": _flag(hf_config, "mlp_bias") if family == "llama" else False,
        "head_norm": family == "qwen3",
    }


def _flag(hf_config: Mapping[str, Any], key: str) -> bool:
    value = hf_config.get(key)
    if value not in (None, True, False) or (isinstance(value, int) and not isinstance(value, bool)):
        raise ModelConfigError(
            f"config.json: {key} {short_repr(value)} is not supported",
            f"Set {key} to true or false",
        )
    return bool(value)


def _refuse_windows(hf_config: Mapping[str, Any], family: _Family) -> None:
    """Raise ModelConfigError if layers see only a part of the text."""
    unsaid = _MISTRALS_WINDOW if family is _FAMILIES["mistral"] else None
    if hf_config.get(family.window, unsaid):
        raise ModelConfigError(
            f"config.json: {family.window} {short_repr(hf_config.get(family.window, unsaid))} is not supported",
            f"Set {family.window} to null if the model was trained without a window",
        )
