"""The shape of a NanoGPT with a MatFormer FFN: which of the speedrun's ideas it has, and the tensors that follow.

Decided
- Each idea is an option of its own in `config.json`; the first three are on unless it says otherwise, as they are in
  every record since they were found. What an option adds begins without effect or nearly so, but for the shapes.
- Norms have no weights, as in modded-nanogpt; queries and keys have as many heads.
- `use_...` keys are those of another NanoGPT, whose functions of these names differ: they are refused.

Source: Jordan et al., modded-nanogpt (github.com/KellerJordan/modded-nanogpt); relu^2: So et al. (arXiv 2109.08668);
value embeddings: Zhou et al. (arXiv 2410.17897); the soft-cap: Gemma 2 (arXiv 2408.00118).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from aftermath.base.errors import shown
from aftermath.model.arch.rope_config import rope_table
from aftermath.model.arch.transformer_config import IDEAS, TransformerConfig
from aftermath.model.config import ModelConfigError
from aftermath.model.tiers import PARTS

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.nanogpt import NanoGPT


_LLAMAS = ("attention_bias", "mlp_bias", "sliding_window", "use_sliding_window")


class NanoGPTConfig(TransformerConfig):
    """Hyper-parameters, under the names that Llamas have for them where these have any."""

    MODEL_TYPE: ClassVar[str] = "nanogpt"
    PARTIAL: ClassVar[tuple[str, ...]] = ("*.value_embeds.*.weight", "*.value_lambda")
    relu_squared: bool = True
    """The FFN is down(relu(up(x))^2); else SwiGLU, with a gate."""
    qk_norm: bool = True
    """Queries and keys are normalised before they are rotated."""
    logit_softcap: float = Field(30.0, ge=0, le=1e4)
    """Logits are bent into ±this by tanh; 0 leaves them."""
    value_embeddings: int = Field(0, ge=0, le=256)
    """So many further tables of the tokens, added to the values of as many first and as many last layers."""
    x0_residual: bool = False
    """Every layer mixes the token's embedding into its input."""
    unet_skips: bool = False
    """Layers of the second half begin with what their mirror images in the first half ended with, added."""

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if 2 * self.value_embeddings > self.num_hidden_layers:
            raise ValueError(
                f"value_embeddings {self.value_embeddings} is more than half of the {self.num_hidden_layers} layers"
            )
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """As it says there."""
        for key in hf_config:
            meant = [] if key.startswith("use_") else get_close_matches(key, IDEAS, 1, 0.75)
            if (meant and key not in IDEAS) or (key in IDEAS and hf_config[key] is None):
                raise ModelConfigError(
                    f"config.json: {key} {shown(hf_config[key])} says nothing here", f"say {meant[0]}"
                )
            if key.startswith("use_") and key != "use_cache" and hf_config[key]:
                raise ModelConfigError(
                    f"config.json: {key} is of another NanoGPT",
                    f"say what is meant by {', '.join(IDEAS)}, if the weights were trained so",
                )
        if other := next((key for key in _LLAMAS if hf_config.get(key)), None):
            raise ModelConfigError(
                f"config.json: {other} {shown(hf_config[other])} is not supported",
                f"a NanoGPT has no {other}: leave it out",
            )
        if (kind := rope_table(hf_config)["rope_type"]) != "default":
            raise ModelConfigError(
                f"config.json: positions of type {shown(kind)} are not supported", "a NanoGPT has plain positions"
            )
        known = cls.known(hf_config)
        if (heads := hf_config.get("num_key_value_heads")) not in (None, known.get("num_attention_heads")):
            raise ModelConfigError(
                f"config.json: num_key_value_heads {shown(heads)} is not num_attention_heads",
                "leave it out: a NanoGPT has as many keys as queries",
            )
        return cls.checked(known)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Named as no architecture of transformers."""
        return self.common_hf(tier) | {"architectures": ["NanoGPT"]}

    def cuts(self) -> tuple[str, ...]:
        """All there is, unless layers are bound to each other, or heads to a table."""
        return ("intermediate_size",) if self.unet_skips or self.value_embeddings else PARTS

    @property
    def skips(self) -> int:
        """Layers that end, and layers that begin, with a skip."""
        return self.num_hidden_layers // 2 if self.unet_skips else 0

    def value_table(self, layer: int) -> int | None:
        """The number of the table that is added to a layer's values."""
        last = layer - (self.num_hidden_layers - self.value_embeddings)
        return layer if layer < self.value_embeddings else last if last >= 0 else None

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """By the options."""
        hidden, kept = self.hidden_size, self.shape(tier)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for table in range(self.value_embeddings):
            shapes[f"model.value_embeds.{table}.weight"] = (self.vocab_size, self.key_heads * self.head_dim)
        if self.skips:
            shapes["model.skip_lambdas"] = (self.skips,)
        for layer in kept.layers:
            prefix = f"model.layers.{layer}."
            ffn, heads = kept.of_layer(layer)
            values = heads * self.head_dim
            if self.x0_residual:
                shapes |= {prefix + "residual_lambda": (1,), prefix + "x0_lambda": (1,)}
            shapes |= {prefix + f"self_attn.{name}_proj.weight": (values, hidden) for name in "qkv"}
            shapes[prefix + "self_attn.o_proj.weight"] = (hidden, values)
            if self.value_table(layer) is not None:
                shapes[prefix + "self_attn.value_lambda"] = (1,)
            if not self.relu_squared:
                shapes[prefix + "mlp.gate_proj.weight"] = (ffn, hidden)
            shapes |= {prefix + "mlp.up_proj.weight": (ffn, hidden), prefix + "mlp.down_proj.weight": (hidden, ffn)}
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def deviation(self, name: str) -> float | None:
        """Lambdas are constants."""
        return super().deviation(name) if name.endswith(".weight") else None

    def constant(self, name: str) -> float:
        """Nothing of x0, half of a value's embedding, all of a skip."""
        return {"x0_lambda": 0.0, "value_lambda": 0.5}.get(name.rpartition(".")[2], 1.0)

    def build(self, tier: int, params: Mapping[str, Tensor]) -> NanoGPT:
        """A NanoGPT."""
        from aftermath.model.arch.nanogpt import NanoGPT

        return NanoGPT.of(self, tier, params)
