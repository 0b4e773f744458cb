"""Any causal language model of transformers: what its `config.json` says, kept as it is.

Decided
- Its function is transformers' own, so a run's members need that package, in versions that compute
  the same: the extra `hf`. No code comes from a checkpoint.
- Checkpoints have the names that published ones have, and transformers' modules may have others:
  experts that it stacks into one tensor are files' tensors one by one. What it does on the way to a
  file is asked of it once, with tensors without numbers; what is more than a view of a parameter is
  refused. Either kind of names is read.
- What a model keeps in addition to its parameters (a bias that balances experts, say) would be
  nobody's to agree on: such a checkpoint is refused by the first name that is no parameter's.
- Tiers halve the feed-forwards of models in which these can be cut (`hf_auto_document.cuts_of`);
  others have tier 0 alone, and say why.
- Keys that change no function (names, versions, tokens) are left out, so that two files of one
  model are one model. So is the width of feed-forwards always said, since a tier's file could not
  tell how its full model left it out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from aftermath.base.errors import shown
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
from aftermath.model.config import ModelConfig, ModelConfigError, Piece, TensorPlan, stored_tier

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.hf_auto import HfAuto


T = TypeVar("T")

_UNTRAINABLE = {
    "rwkv": "its weights change while it computes",
    "deepseek_v32": "what chooses the tokens that are seen never has a gradient",
}
"""Types of models whose network transformers has, and which members cannot learn alike."""


class HfAutoConfig(ModelConfig):
    """A `config.json` of a model that only transformers knows."""

    MODEL_TYPE: ClassVar[str] = "hf_auto"
    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {}
    document: str = Field(max_length=LONGEST)
    """Its keys that change what is computed, as canonical JSON. One that is null is not one that is
    absent: then transformers has a default. The row of the padding token learns nothing there, and
    is named by this or by default.
    """

    @model_validator(mode="after")
    def _width_is_the_documents(self) -> Self:
        found = width_of(self.document)
        if found is not None and found[1] != self.intermediate_size:
            raise ValueError(f"intermediate_size {self.intermediate_size} is {found[1]} in the document")
        return self

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """As it says there. Raises ModelConfigError without transformers, and for what it does not
        know.
        """
        if (why := _UNTRAINABLE.get(str(hf_config.get("model_type")))) is not None:
            raise ModelConfigError(
                f"config.json: model_type {hf_config['model_type']} is not supported: {why}", "Use another model"
            )
        said = without_choices({key: value for key, value in hf_config.items() if key not in SILENT})
        refuse_contradictions(said, config_of_document(canonical(said)).attribute_map)
        document, width = _whole(said, hf_config)
        tokens = {key: hf_config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
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
        """What it was made of, with its tokens; a tier says what it is a tier of."""
        width = self.width(tier)
        tokens = self.model_dump(include={"bos_token_id", "eos_token_id"})
        said: dict[str, Any] = json.loads(self.document_of(tier))
        if tier:
            said |= {"matformer_tier": tier, "matformer_base_intermediate_size": self.intermediate_size}
            said |= {"intermediate_size": width}  # whatever transformers calls it here
        return said | tokens | {"torch_dtype": "float32"}

    def width(self, tier: int) -> int:
        """As every model's. Raises ModelConfigError for a tier where feed-forwards cannot be
        cut.
        """
        if tier and isinstance(why := cuts_of(self.document), str):
            name = shown(json.loads(self.document)["model_type"])
            raise ModelConfigError(
                f"a model of type {name} has no tier {tier}: {why}", "Give the run one tier, or another model"
            )
        return super().width(tier)

    @property
    def model_type(self) -> str:
        """As transformers names the type."""
        return str(json.loads(self.document)["model_type"])

    def document_of(self, tier: int) -> str:
        """The document of a tier, by which transformers makes its network."""
        return with_width(self.document, self.width(tier)) if tier else self.document

    def elastic_dim(self, name: str) -> Literal[0, 1] | None:
        """Of the feed-forwards' tensors, where they can be cut."""
        cuts = cuts_of(self.document)
        return None if isinstance(cuts, str) else cuts.get(name)

    def tensor_plan(self, tier: int) -> TensorPlan | str:
        """Not here."""
        del tier
        return "its layers are transformers' own, and each of its models computes them in another way"

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """As transformers names them."""
        self.width(tier)
        return dict(shapes_of(self.document_of(tier)))

    def pieces(self) -> Mapping[str, Piece]:
        """What transformers calls otherwise in files, or cuts."""
        return pieces_of(self.document)

    @property
    def cacheable(self) -> int:
        """Nothing: what transformers' models keep of a text is of many kinds."""
        return 0

    def tables(self) -> tuple[str, str]:
        """As transformers has them."""
        return tables_of(self.document)

    @property
    def base_prefix(self) -> str:
        """As transformers' class of the model says."""
        return file_names_of(self.document).prefix

    @property
    def ignored_names(self) -> tuple[str, ...]:
        """As transformers' class of the model says."""
        return file_names_of(self.document).ignored

    def deviation(self, name: str) -> float | None:
        """Vectors begin as constants."""
        return None if len(shapes_of(self.document)[name]) < 2 else 0.02

    def constant(self, name: str) -> float:
        """Biases are nothing; other vectors are of norms."""
        return 0.0 if name.endswith("bias") else 1.0

    def build(self, tier: int, params: Mapping[str, Tensor]) -> HfAuto:
        """transformers' own network."""
        from aftermath.model.arch.hf_auto import HfAuto

        self.width(tier)
        return HfAuto.of(self, tier, params)


def _whole(said: Mapping[str, Any], hf_config: Mapping[str, Any]) -> tuple[str, int]:
    """The full model's document, and its width, from what the file of any tier says. Raises
    ModelConfigError.
    """
    document, found = canonical(said), width_of(canonical(said))
    tier, base = 0, 0
    if hf_config.get("matformer_tier") or hf_config.get("matformer_base_intermediate_size"):
        tier, base = stored_tier(hf_config)
    if found is None:
        if tier:
            raise ModelConfigError("config.json: matformer_tier must be 0 here", "Name the full checkpoint")
        return document, _of_text(document, _width_of_text)
    key, width = found
    if tier and width << tier != base:
        raise ModelConfigError(
            f"config.json: {key} {width} is not matformer_base_intermediate_size {base} / 2^{tier}",
            "Export the tier again from the full checkpoint",
        )
    whole = base if tier else width
    kept = {name: value for name, value in said.items() if name != "intermediate_size"}  # a tier's file has both
    return canonical(kept | {key: whole}), whole


def _of_text(document: str, asked: Callable[[Any], T]) -> T:
    """What a model's part for text says. Raises ModelConfigError where it has none of its own, or
    says nothing.
    """
    made = config_of_document(document)
    try:
        return asked(made.get_text_config())
    except Exception as error:  # each model has a config of its own
        raise ModelConfigError(
            f"config.json: transformers does not say what is wanted of it: {shown(str(error))}", "Use another model"
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
