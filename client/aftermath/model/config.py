"""The shape of a Llama with a MatFormer FFN: what its `config.json` may say, and the tensors that follow from it.

Decided
- A `LlamaConfig` always describes tier 0 (the full model); which tier a directory stores is a separate fact,
  `stored_tier`.
- What a key means, and what holds when it is absent, is what `LlamaForCausalLM` of transformers 5 makes of it. Keys by
  which that computes something else than `model.llama` are refused by name; all others change nothing and pass.
- Token ids (one or several that end a text, the one that pads) change no function: they are kept and written back.

No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from aftermath.run.accounts import MAX_LEVELS
from aftermath.run.errors import AftermathError

MAX_TIERS = MAX_LEVELS  # each tier has a level of its own

# The elastic tensors of a MatFormer FFN and the dimension that holds the hidden units (arXiv 2310.07707).
ELASTIC_DIMS: dict[str, Literal[0, 1]] = {
    "mlp.gate_proj.weight": 0,
    "mlp.up_proj.weight": 0,
    "mlp.down_proj.weight": 1,
}
# Keys that transformers reads for a Llama as well, and that make it another function whatever they say.
_OTHER_FUNCTIONS = (
    "quantization_config",
    "compression_config",
    "per_layer_config",
    "sliding_window",
    "attention_chunk_size",
)
_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")
TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]


class ModelConfigError(AftermathError):
    """A model's `config.json` contradicts itself or asks for something this client does not compute."""


class LlamaConfig(BaseModel):
    """Hyper-parameters of the full model (tier 0), under their names in the Hugging Face `LlamaConfig`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    vocab_size: int = Field(ge=2, le=1 << 22)
    hidden_size: int = Field(ge=2, le=1 << 16)
    intermediate_size: int = Field(ge=1, le=1 << 20)
    num_hidden_layers: int = Field(ge=1, le=512)
    num_attention_heads: int = Field(ge=1, le=1 << 10)
    num_key_value_heads: int = Field(ge=1, le=1 << 10)
    head_dim: int = Field(ge=2, le=1 << 12)
    max_position_embeddings: int = Field(2048, ge=1, le=1 << 24)
    rms_norm_eps: float = Field(1e-6, gt=0, le=1e-2)
    rope_theta: float = Field(10000.0, ge=1, le=1e12)
    tie_word_embeddings: bool = False
    initializer_range: float = Field(0.02, gt=0, le=1)
    bos_token_id: TokenId | None = 1
    eos_token_id: TokenId | tuple[TokenId, ...] | None = 2
    pad_token_id: int | None = Field(None, ge=-1, lt=1 << 32)  # some write -1 for none

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embeddings need an even one")
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> LlamaConfig:
        """The full model described by a `config.json`, also when that file belongs to a tier's slice.

        Raises ModelConfigError when the file contradicts itself or is not a plain Llama.
        """
        _refuse_other_functions(hf_config)
        _, width = stored_tier(hf_config)
        tokens = {key: hf_config[key] for key in _TOKEN_KEYS if key in hf_config}  # null says that there is none
        known = {key: hf_config[key] for key in cls.model_fields if hf_config.get(key) is not None} | tokens
        known["intermediate_size"] = width
        known.setdefault("num_key_value_heads", known.get("num_attention_heads"))
        if (theta := _rope_theta(hf_config)) is not None:
            known["rope_theta"] = theta
        heads, hidden = known.get("num_attention_heads"), known.get("hidden_size")
        if "head_dim" not in known and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            if hidden % heads:
                raise ModelConfigError(
                    f"config.json: hidden_size {hidden} is not a multiple of {heads} attention heads",
                    "choose a number of heads that divides it",
                )
            known["head_dim"] = hidden // heads
        if isinstance(known.get("eos_token_id"), list):
            known["eos_token_id"] = tuple(known["eos_token_id"])
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            raise ModelConfigError(
                f"config.json: {_sentence(error)}", "correct it, or use another checkpoint"
            ) from None

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """The `config.json` of this model's tier, with both matformer keys; loads in any Hugging Face client."""
        ends = list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        return self.model_dump() | {
            "eos_token_id": ends,
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
            "intermediate_size": self.width(tier),
            "matformer_tier": tier,
            "matformer_base_intermediate_size": self.intermediate_size,
        }

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens any of which ends a text."""
        if isinstance(self.eos_token_id, tuple):
            return self.eos_token_id
        return () if self.eos_token_id is None else (self.eos_token_id,)

    def width(self, tier: int) -> int:
        """FFN hidden units of a tier, `intermediate_size / 2^tier`. Raises WidthNotDivisible."""
        check_divisible(self.intermediate_size, tier)
        return self.intermediate_size >> tier

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


class WidthNotDivisible(ModelConfigError):
    """The FFN width cannot be halved as often as the tiers demand."""


def check_divisible(width: int, halvings: int) -> None:
    """Raise WidthNotDivisible, naming the nearest widths that work, unless 2^halvings divides the width."""
    if not 0 <= halvings < MAX_TIERS:
        raise ModelConfigError(f"tier {halvings} is out of range", f"tiers are 0 to {MAX_TIERS - 1}")
    step = 1 << halvings
    if width % step:
        below = width - width % step
        nearest = f"{below} or {below + step}" if below else str(step)
        raise WidthNotDivisible(
            f"intermediate_size {width} is not divisible by {step}, so tier {halvings} has no whole width",
            f"the nearest widths that are: {nearest}",
        )


def elastic_dim(name: str) -> Literal[0, 1] | None:
    """The dimension of this tensor that is cut into levels, or None when every tier holds all of it."""
    for suffix, dim in ELASTIC_DIMS.items():
        if name.endswith("." + suffix):
            return dim
    return None


def stored_tier(hf_config: Mapping[str, Any]) -> tuple[int, int]:
    """(tier, tier-0 width) that a `config.json` declares. A plain Llama is tier 0.

    Raises ModelConfigError when `matformer_tier`, `matformer_base_intermediate_size` and `intermediate_size` disagree.
    """
    size = _positive_int(hf_config, "intermediate_size")
    if size is None:
        raise ModelConfigError("config.json: intermediate_size is missing")
    tier, base = hf_config.get("matformer_tier"), _positive_int(hf_config, "matformer_base_intermediate_size")
    if tier is None:
        if base is None:
            return 0, size
        tier = (base // size).bit_length() - 1
    if not isinstance(tier, int) or isinstance(tier, bool) or not 0 <= tier < MAX_TIERS:
        raise ModelConfigError(
            f"config.json: matformer_tier must be an integer from 0 to {MAX_TIERS - 1}, not {tier!r}"
        )
    if base is None:
        base = size << tier
    if size << tier != base:
        raise ModelConfigError(
            f"config.json: intermediate_size {size} is not matformer_base_intermediate_size {base} / 2^{tier}",
            "correct the three keys, or export the tier again from the full checkpoint",
        )
    return tier, base


def _positive_int(hf_config: Mapping[str, Any], key: str) -> int | None:
    value = hf_config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 20:
        raise ModelConfigError(f"config.json: {key} must be an integer from 1 to {1 << 20}, not {value!r}")
    return value


def _refuse_other_functions(hf_config: Mapping[str, Any]) -> None:
    """Raise if `LlamaForCausalLM` would compute, or train, another function of this file than `model.llama` does."""
    if hf_config.get("model_type") not in (None, "llama"):
        raise ModelConfigError(
            f"config.json: model_type {hf_config['model_type']!r} is not supported", "use a Llama checkpoint"
        )
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


def _sentence(error: ValidationError) -> str:
    said: dict[str, str] = {}
    for problem in error.errors():
        key = str(problem["loc"][0]) if problem["loc"] else ""
        said.setdefault(key, f"{key}: {problem['msg']}" if key else problem["msg"].removeprefix("Value error, "))
    return "; ".join(said.values())
