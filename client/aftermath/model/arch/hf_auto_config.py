"""The config of any causal language model of transformers: its `config.json`, kept as it is.

transformers computes the function, so all members need compatible versions of it (the extra
`hf`). No code comes from a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from aftermath.base.errors import short_repr
from aftermath.model.arch.hf_auto_document import (
    LONGEST,
    canonical,
    config_of_document,
    cuts_of,
    file_names_of,
    pieces_of,
    shapes_of,
    tables_of,
    width_of,
    with_width,
    without_choices,
)
from aftermath.model.arch.known_keys import SILENT, refuse_contradictions
from aftermath.model.config import (
    FileTensor,
    ModelConfig,
    ModelConfigError,
    TensorPlan,
    stored_tier,
)

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.hf_auto import HfAuto


T = TypeVar("T")

_UNTRAINABLE = {
    "rwkv": "its weights change during the forward pass",
    "deepseek_v32": "the weights that select visible tokens get no gradient",
}
"""Model types of transformers that members cannot train identically, and why."""


class HfAutoConfig(ModelConfig):
    """A `config.json` of a model that only transformers knows."""

    MODEL_TYPE: ClassVar[str] = "hf_auto"
    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {}
    # Keys that do not change the computed function (names, versions, tokens) are left out. So all
    # files of a model give the same schema. The feed-forward width is always written, because a
    # tier's file does not show whether the full model's file omits it.
    document: str = Field(max_length=LONGEST)
    """Canonical JSON of the keys that change the function. Null keys stay, because transformers
    replaces an absent key by its default. transformers does not train the padding token's row.
    """

    @model_validator(mode="after")
    def _width_is_the_documents(self) -> Self:
        key_and_width = width_of(self.document)
        if key_and_width is not None and key_and_width[1] != self.intermediate_size:
            raise ValueError(
                f"intermediate_size {self.intermediate_size} differs from the document's {key_and_width[1]}"
            )
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """Return the config of a file. Raises ModelConfigError, also without transformers."""
        if (why := _UNTRAINABLE.get(str(hf_config.get("model_type")))) is not None:
            raise ModelConfigError(
                f"config.json: model_type {hf_config['model_type']} is not supported: {why}",
                "Use another model",
            )
        parsed = without_choices(
            {key: value for key, value in hf_config.items() if key not in SILENT}
        )
        refuse_contradictions(parsed, config_of_document(canonical(parsed)).attribute_map)
        document, width = _whole(parsed, hf_config)
        tokens = {
            key: hf_config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        }
        if isinstance(tokens["eos_token_id"], list):
            tokens["eos_token_id"] = tuple(tokens["eos_token_id"])
        return cls.checked(
            {
                "document": document,
                "intermediate_size": width,
            }
            | _of_text(document, _sizes_of_text)
            | tokens
        )

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Return a tier's `config.json`: the document, the tokens, and the full model's width."""
        width = self.width(tier)
        tokens = self.model_dump(include={"bos_token_id", "eos_token_id"})
        document: dict[str, Any] = json.loads(self.document_of(tier))
        if tier:
            document |= {
                "matformer_tier": tier,
                "matformer_base_intermediate_size": self.intermediate_size,
            }
            document |= {"intermediate_size": width}  # whatever transformers calls it here
        return document | tokens | {"torch_dtype": "float32"}

    # Tiers halve the feed-forwards of models that allow it (`cuts_of`). Other models have only tier
    # 0.
    def width(self, tier: int) -> int:
        """Return a tier's feed-forward width. Raises ModelConfigError if it cannot be cut."""
        if tier and isinstance(why := cuts_of(self.document), str):
            name = short_repr(json.loads(self.document)["model_type"])
            raise ModelConfigError(
                f"a model of type {name} has no tier {tier}: {why}",
                "Use one tier, or another model",
            )
        return super().width(tier)

    @property
    def model_type(self) -> str:
        """Return transformers' name of the type."""
        return str(json.loads(self.document)["model_type"])

    def document_of(self, tier: int) -> str:
        """Return the document from which transformers builds a tier's network."""
        return with_width(self.document, self.width(tier)) if tier else self.document

    def elastic_dim(self, name: str) -> Literal[0, 1] | None:
        """Return the cut dimension of a feed-forward's tensor, or None."""
        cuts = cuts_of(self.document)
        return None if isinstance(cuts, str) else cuts.get(name)

    def tensor_plan(self, tier: int) -> TensorPlan | str:
        """Return why tensor parallelism is not supported."""
        del tier
        return "its layers come from transformers, where every model type computes them differently"

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the shapes under transformers' names."""
        self.width(tier)
        return dict(shapes_of(self.document_of(tier)))

    # transformers may stack experts in one tensor, while files have one tensor per expert. Both
    # kinds of names are read. Checkpoints with state that is not a parameter are refused, because
    # members would not agree on it.
    def pieces(self) -> Mapping[str, FileTensor]:
        """Return the tensors that files name or split differently."""
        return pieces_of(self.document)

    @property
    def cacheable(self) -> int:
        """Return 0, because each model type of transformers caches text differently."""
        return 0

    def tables(self) -> tuple[str, str]:
        """Return the names of the embedding and of the output head."""
        return tables_of(self.document)

    @property
    def base_prefix(self) -> str:
        """Return the name of the base model within the network, with its dot."""
        return file_names_of(self.document).prefix

    @property
    def ignored_names(self) -> tuple[str, ...]:
        """Return patterns of names in files that transformers ignores."""
        return file_names_of(self.document).ignored

    def deviation(self, name: str) -> float | None:
        """Return the deviation of matrices, and None for vectors."""
        return None if len(shapes_of(self.document)[name]) < 2 else 0.02

    def constant(self, name: str) -> float:
        """Return 0 for biases and 1 for norms."""
        return 0.0 if name.endswith("bias") else 1.0

    def build(self, tier: int, params: Mapping[str, Tensor]) -> HfAuto:
        """Return transformers' own network with these tensors."""
        from aftermath.model.arch.hf_auto import HfAuto

        self.width(tier)
        return HfAuto.of(self, tier, params)


def _whole(parsed: Mapping[str, Any], hf_config: Mapping[str, Any]) -> tuple[str, int]:
    """Return the full model's document and width. Raises ModelConfigError."""
    document = canonical(parsed)
    key_and_width = width_of(canonical(parsed))
    tier = 0
    base = 0
    if hf_config.get("matformer_tier") or hf_config.get("matformer_base_intermediate_size"):
        tier, base = stored_tier(hf_config)
    if key_and_width is None:
        if tier:
            raise ModelConfigError(
                f"config.json: matformer_tier is {tier}, but this model has no tiers",
                "Name the full checkpoint",
            )
        return document, _of_text(document, _width_of_text)
    key, width = key_and_width
    if tier and width << tier != base:
        raise ModelConfigError(
            f"config.json: {key} {width} is not matformer_base_intermediate_size {base} / 2^{tier}",
            "Export the tier again from the full checkpoint",
        )
    whole = base if tier else width
    # a tier's file has both
    rest = {name: value for name, value in parsed.items() if name != "intermediate_size"}
    return canonical(rest | {key: whole}), whole


def _of_text(document: str, read: Callable[[Any], T]) -> T:
    """Return a value of a model's text config. Raises ModelConfigError if it has none."""
    config = config_of_document(document)
    try:
        return read(config.get_text_config())
    except Exception as error:  # every model type has its own config code, which may raise anything
        raise ModelConfigError(
            f"config.json: transformers finds no sizes of a text model in it: {short_repr(str(error))}",
            "Use another model",
        ) from None


def _sizes_of_text(text: Any) -> dict[str, Any]:
    return {
        "vocab_size": text.vocab_size,
        "max_position_embeddings": getattr(text, "max_position_embeddings", None) or 2048,
        "tie_word_embeddings": bool(text.tie_word_embeddings),
    }


def _width_of_text(text: Any) -> int:
    listed = getattr(text, "intermediate_size", None)
    width: int = listed if isinstance(listed, int) else 4 * text.hidden_size
    return width
