"""The config of a NanoGPT with a MatFormer feed-forward: one option per idea of the speedrun.

Sources: Jordan et al., modded-nanogpt (github.com/KellerJordan/modded-nanogpt); relu^2: So et al.
(arXiv 2109.08668); value embeddings: Zhou et al. (arXiv 2410.17897); soft-cap: Gemma 2 (arXiv
2408.00118).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.base.errors import short_repr
from aftermath.model.arch.known_keys import NANOGPT_KEYS, refuse_unknown_keys
from aftermath.model.arch.rope_config import rope_table
from aftermath.model.arch.transformer_config import JUDGED, TransformerConfig
from aftermath.model.config import ModelConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.nanogpt import NanoGPT


_LLAMAS = ("attention_bias", "mlp_bias", "sliding_window", "use_sliding_window")


# The first three options default to on, as in every speedrun record since their introduction. Added
# parts initially have little or no effect. Norms have no weights, as in modded-nanogpt.
class NanoGPTConfig(TransformerConfig):
    """Hyper-parameters, under a Llama's names where it has them."""

    MODEL_TYPE: ClassVar[str] = "nanogpt"
    PARTIAL: ClassVar[tuple[str, ...]] = ("value_embeds.*.weight", "value_lambda")
    relu_squared: bool = True
    """The FFN is down(relu(up(x))^2); else SwiGLU, with a gate."""
    qk_norm: bool = True
    """Queries and keys are normalised before they are rotated."""
    logit_softcap: float = Field(30.0, ge=0, le=1e4)
    """Soft cap: tanh limits logits to ± this value. 0 disables it."""
    value_embeddings: int = Field(0, ge=0, le=256)
    """Number N of token tables, added to the values of the first N and the last N layers."""
    x0_residual: bool = False
    """Every layer mixes the token's embedding into its input."""
    unet_skips: bool = False
    """Layers of the second half add the output of their mirror image to their input."""

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if 2 * self.value_embeddings > self.num_hidden_layers:
            raise ValueError(
                f"value_embeddings {self.value_embeddings} is more than half of the {self.num_hidden_layers} layers"
            )
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """Return the config of a `config.json`. Raises ModelConfigError."""
        for key in hf_config:
            if key in NANOGPT_KEYS and hf_config[key] is None:
                raise ModelConfigError(
                    f"config.json: {key} must not be null",
                    f"Set {key} to a value, or remove it",
                )
            if key.startswith("use_") and key not in JUDGED and hf_config[key]:
                raise ModelConfigError(
                    f"config.json: {key} is a key of another NanoGPT variant",
                    f"If the weights were trained with it, use these keys instead: {', '.join(NANOGPT_KEYS)}",
                )
        if other := next((key for key in _LLAMAS if hf_config.get(key)), None):
            raise ModelConfigError(
                f"config.json: {other} {short_repr(hf_config[other])} is not supported",
                f"Remove {other}, which a NanoGPT does not have",
            )
        # Other NanoGPTs give `use_...` keys another meaning, so the check above refuses them.
        # `known_keys` refuses unknown keys.
        passed = {key for key in hf_config if key.startswith("use_")}  # all of them are false here
        refuse_unknown_keys(
            hf_config, cls.model_fields, JUDGED | passed | {*_LLAMAS, "num_key_value_heads"}
        )
        if (kind := rope_table(hf_config, 1)["rope_type"]) != "default":
            raise ModelConfigError(
                f"config.json: positions of type {short_repr(kind)} are not supported",
                "A NanoGPT supports only plain positions",
            )
        known = cls.known(hf_config)
        if (heads := hf_config.get("num_key_value_heads")) not in (
            None,
            known.get("num_attention_heads"),
        ):
            raise ModelConfigError(
                f"config.json: num_key_value_heads {short_repr(heads)} differs from num_attention_heads",
                "Remove num_key_value_heads: a NanoGPT has one key head per query head",
            )
        return cls.checked(known)

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Return a `config.json`. transformers has no architecture of this name."""
        return self.common_hf(tier) | {"architectures": ["NanoGPT"]}

    @property
    def skips(self) -> int:
        """Return how many layers end with a skip. The same number begin with one."""
        return self.num_hidden_layers // 2 if self.unet_skips else 0

    def value_table(self, layer: int) -> int | None:
        """Return the number of the table that is added to a layer's values, or None."""
        last = layer - (self.num_hidden_layers - self.value_embeddings)
        return layer if layer < self.value_embeddings else last if last >= 0 else None

    # If tiers differ in heads, a value embedding is cut by columns. A tier has as many columns as
    # its widest layer that uses the table.
    def value_tables(self, tier: int) -> dict[int, int]:
        """Return the tables of a tier by number, with the number of heads that they cover."""
        shape = self.shape(tier)
        tables = dict[int, int]()
        for layer in shape.layers:
            if (table := self.value_table(layer)) is not None:
                tables[table] = max(tables.get(table, 0), shape.of_layer(layer)[1])
        return dict(sorted(tables.items()))

    # A skipped layer returns its input, and its mirror image receives that input. So every kept
    # layer of the second half has its skip. `skip_lambdas` is whole in every tier with a skip;
    # entries that a tier does not use get a gradient of zero.
    def has_skips(self, tier: int) -> bool:
        """Return whether a tier has a layer that begins with a skip."""
        return self.skips > 0 and self.shape(tier).layers[-1] >= self.num_hidden_layers - self.skips

    def elastic_dim(self, name: str) -> Literal[0, 1] | None:
        """Return the cut dimension. A value embedding has columns for each head."""
        if name.startswith("model.value_embeds."):
            return 1 if self.heads_differ else None
        return super().elastic_dim(name)

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of a tier, which depends on the options."""
        hidden = self.hidden_size
        shape = self.shape(tier)
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden)
        }
        for table, heads in self.value_tables(tier).items():
            shapes[f"model.value_embeds.{table}.weight"] = (self.vocab_size, heads * self.head_dim)
        if self.has_skips(tier):
            shapes["model.skip_lambdas"] = (self.skips,)
        for layer in shape.layers:
            prefix = f"model.layers.{layer}."
            ffn, heads = shape.of_layer(layer)
            values = heads * self.head_dim
            if self.x0_residual:
                shapes |= {prefix + "residual_lambda": (1,), prefix + "x0_lambda": (1,)}
            shapes |= {prefix + f"self_attn.{name}_proj.weight": (values, hidden) for name in "qkv"}
            shapes[prefix + "self_attn.o_proj.weight"] = (hidden, values)
            if self.value_table(layer) is not None:
                shapes[prefix + "self_attn.value_lambda"] = (1,)
            if not self.relu_squared:
                shapes[prefix + "mlp.gate_proj.weight"] = (ffn, hidden)
            shapes |= {
                prefix + "mlp.up_proj.weight": (ffn, hidden),
                prefix + "mlp.down_proj.weight": (hidden, ffn),
            }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def deviation(self, name: str) -> float | None:
        """Return the deviation of matrices, and None for lambdas."""
        return super().deviation(name) if name.endswith(".weight") else None

    def constant(self, name: str) -> float:
        """Return 0 for x0, 0.5 for value embeddings and 1 for skips."""
        return {"x0_lambda": 0.0, "value_lambda": 0.5}.get(name.rpartition(".")[2], 1.0)

    def build(self, tier: int, params: Mapping[str, Tensor]) -> NanoGPT:
        """Return the network with these tensors."""
        from aftermath.model.arch.nanogpt import NanoGPT

        return NanoGPT.of(self, tier, params)
