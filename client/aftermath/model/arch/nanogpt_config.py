"""The shape of a NanoGPT with a MatFormer FFN: which of the speedrun's ideas it has, and the tensors that follow.

Decided
- Each idea is an option of its own in `config.json`; the first three are on unless it says otherwise, as they are in
  every record since they were found. What an option adds begins without effect or nearly so, but for the shapes.
- Norms have no weights, as in modded-nanogpt; queries and keys have as many heads.
- Where tiers leave out layers, a layer that is not there passes on what it got, to its mirror image too: so every layer
  of the second half that is kept has its skip, and a skip into a layer that is not kept is none. Where tiers differ in
  heads, a value embedding is cut by columns; a tier has the columns of its widest layer that takes them.
- `skip_lambdas` is one vector, whole in every tier that has a skip: of one that it lacks, the gradient is zero.
- `use_...` keys are those of another NanoGPT, whose functions of these names differ: they are refused. So is any key
  that is not known (`known_keys`), since no other program says what a NanoGPT's keys mean.

Source: Jordan et al., modded-nanogpt (github.com/KellerJordan/modded-nanogpt); relu^2: So et al. (arXiv 2109.08668);
value embeddings: Zhou et al. (arXiv 2410.17897); the soft-cap: Gemma 2 (arXiv 2408.00118).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.base.errors import shown
from aftermath.model.arch.known_keys import IDEAS, refuse_strange
from aftermath.model.arch.rope_config import rope_table
from aftermath.model.arch.transformer_config import JUDGED, TransformerConfig
from aftermath.model.config import ModelConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.nanogpt import NanoGPT


_LLAMAS = ("attention_bias", "mlp_bias", "sliding_window", "use_sliding_window")


class NanoGPTConfig(TransformerConfig):
    """Hyper-parameters, under the names that Llamas have for them where these have any."""

    MODEL_TYPE: ClassVar[str] = "nanogpt"
    PARTIAL: ClassVar[tuple[str, ...]] = ("value_embeds.*.weight", "value_lambda")
    relu_squared: bool = True
    """The FFN is down(relu(up(x))^2); else SwiGLU, with a gate."""
    qk_norm: bool = True
    """Queries and keys are normalised before they are rotated."""
    logit_softcap: float = Field(30.0, ge=0, le=1e4)
    """Logits are bent into ±this by tanh; 0 leaves them."""
    value_embeddings: int = Field(0, ge=0, le=256)
    """Additional tables of the tokens, added to the values of as many first and as many last
    layers.
    """
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
            if key in IDEAS and hf_config[key] is None:
                raise ModelConfigError(
                    f"config.json: {key} None says nothing here", f"Say what {key} is, or leave it out"
                )
            if key.startswith("use_") and key not in JUDGED and hf_config[key]:
                raise ModelConfigError(
                    f"config.json: {key} is of another NanoGPT",
                    f"Say what is meant by {', '.join(IDEAS)}, if the weights were trained so",
                )
        if other := next((key for key in _LLAMAS if hf_config.get(key)), None):
            raise ModelConfigError(
                f"config.json: {other} {shown(hf_config[other])} is not supported",
                f"A NanoGPT has no {other}: leave it out",
            )
        passed = {key for key in hf_config if key.startswith("use_")}  # each of them says no
        refuse_strange(hf_config, cls.model_fields, JUDGED | passed | {*_LLAMAS, "num_key_value_heads"})
        if (kind := rope_table(hf_config, 1)["rope_type"]) != "default":
            raise ModelConfigError(
                f"config.json: positions of type {shown(kind)} are not supported", "A NanoGPT has plain positions"
            )
        known = cls.known(hf_config)
        if (heads := hf_config.get("num_key_value_heads")) not in (None, known.get("num_attention_heads")):
            raise ModelConfigError(
                f"config.json: num_key_value_heads {shown(heads)} is not num_attention_heads",
                "Leave it out: a NanoGPT has as many keys as queries",
            )
        return cls.checked(known)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Named as no architecture of transformers."""
        return self.common_hf(tier) | {"architectures": ["NanoGPT"]}

    @property
    def skips(self) -> int:
        """Layers that end, and layers that begin, with a skip."""
        return self.num_hidden_layers // 2 if self.unet_skips else 0

    def value_table(self, layer: int) -> int | None:
        """The number of the table that is added to a layer's values."""
        last = layer - (self.num_hidden_layers - self.value_embeddings)
        return layer if layer < self.value_embeddings else last if last >= 0 else None

    def value_tables(self, tier: int) -> dict[int, int]:
        """The tables that a tier holds, by their numbers, with the heads for which it has their columns."""
        kept, tables = self.shape(tier), dict[int, int]()
        for layer in kept.layers:
            if (table := self.value_table(layer)) is not None:
                tables[table] = max(tables.get(table, 0), kept.of_layer(layer)[1])
        return dict(sorted(tables.items()))

    def has_skips(self, tier: int) -> bool:
        """Whether a tier has a layer that begins with a skip."""
        return self.skips > 0 and self.shape(tier).layers[-1] >= self.num_hidden_layers - self.skips

    def elastic_dim(self, name: str) -> Literal[0, 1] | None:
        """A value embedding has columns for each head."""
        if name.startswith("model.value_embeds."):
            return 1 if self.heads_differ else None
        return super().elastic_dim(name)

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """By the options."""
        hidden, kept = self.hidden_size, self.shape(tier)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for table, heads in self.value_tables(tier).items():
            shapes[f"model.value_embeds.{table}.weight"] = (self.vocab_size, heads * self.head_dim)
        if self.has_skips(tier):
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
