"""The config of a model, whatever its architecture: shapes, tiers and `config.json`.

An architecture is a subclass, registered in `model/architectures.py` or by another package
(docs/models.md). This module never imports torch; a config imports its network to build it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aftermath.base.errors import AftermathError, short_repr
from aftermath.model.presets import LIMITS
from aftermath.rules.limits import MAX_LEVELS

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.network import LanguageModel

Dims = Mapping[str, Literal[0, 1]]
"""Cut dimension by name suffix of a matrix. `*` matches any part."""


@dataclass(frozen=True)
class TensorPlan:
    """How ranks cut a tier's network (tensor parallelism)."""

    dims: Dims
    """The cut dimension by name: 0 (output) for matrices into a block, 1 (input) out of it."""
    divided: Mapping[str, Sequence[int]]
    """Counts that the ranks must divide, by a name for error messages."""
    partial: tuple[str, ...] = ()
    """Parameters that every rank holds but uses only for its own heads. Gradients are summed."""
    inner: Dims = field(default_factory=dict)
    """Cut matrices between a `spread` and a `summed` module."""
    spread: tuple[str, ...] = ()
    """Modules that pass a shared tensor to each rank's part; its gradients are summed."""
    summed: tuple[str, ...] = ()
    """Modules whose outputs are partial sums: they are summed over ranks."""


MAX_TIERS = MAX_LEVELS  # each tier has a level of its own


def sized(name: str, default: Any = ...) -> Any:
    """Return a pydantic field with the bounds of `LIMITS`."""
    return Field(default, **LIMITS[name]._asdict())


TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]


@dataclass(frozen=True)
class FileTensor:
    """A part of a tensor that files store under another name."""

    name: str
    """Name of the whole tensor in the model."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return this piece of a contiguous tensor, without a copy."""
        return tensor.as_strided(self.shape, self.stride, tensor.storage_offset() + self.offset)


class ModelConfigError(AftermathError):
    """A `config.json` contradicts itself or needs something that this client lacks."""

    code = "model-config"


# A config always describes the full model, tier 0; `stored_tier` returns a directory's tier. Tier k
# keeps the first 1/2^k of the hidden units of every feed-forward, unless the file names its tiers
# (`model/tier_shapes.py`). Token ids do not change the function and are written back. Unlike in
# transformers, the padding token's row is trained: texts are not padded here, and one token may
# mean both padding and the end of a text.
class ModelConfig(BaseModel, ABC):
    """The full model's hyper-parameters, under their Hugging Face names."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    MODEL_TYPE: ClassVar[str]
    """The architecture's type in a schema and, unless it has several, in `config.json`."""
    MODEL_TYPES: ClassVar[tuple[str, ...]] = ()
    """All types in `config.json` that the architecture supports, if there are several."""
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Presets of an architecture of another package: `config.json` by name."""
    LATER: ClassVar[frozenset[str]] = frozenset()
    """Fields that a schema omits at their defaults, so that older schemas keep their hash."""
    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]]
    """Name suffixes of tensors that are cut into levels, and their cut dimension."""

    vocab_size: int = sized("vocab_size")
    intermediate_size: int = sized("intermediate_size")
    max_position_embeddings: int = sized("max_position_embeddings", 2048)
    tie_word_embeddings: bool = False
    bos_token_id: TokenId | None = 1
    eos_token_id: TokenId | tuple[TokenId, ...] | None = 2
    pad_token_id: int | None = Field(None, ge=-1, lt=1 << 32)  # some files write -1 for none

    @classmethod
    @abstractmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """Return the full model that a `config.json` describes, also from a tier's slice.

        Raises ModelConfigError if the file contradicts itself or describes another function than
        the network's.
        """

    @abstractmethod
    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """Return the `config.json` of this model's tier, with both matformer keys."""

    @abstractmethod
    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of a tier. A tied output head has no tensor."""

    @abstractmethod
    def deviation(self, name: str) -> float | None:
        """Return the standard deviation of a tensor's initial values, or None for a constant."""

    def constant(self, name: str) -> float:
        """Return the initial value of a constant tensor."""
        del name
        return 1.0

    @abstractmethod
    def build(self, tier: int, params: Mapping[str, Tensor]) -> LanguageModel:
        """Return the network on these tensors (no copy). Raises RuntimeError if they do not fit."""

    def tables(self) -> tuple[str, str]:
        """Return the names of the embedding and of the output head."""
        return "model.embed_tokens.weight", "lm_head.weight"

    @property
    def base_prefix(self) -> str:
        """Return the prefix of all names but the head's, which files of a base model lack."""
        return "model."

    @property
    def ignored_names(self) -> tuple[str, ...]:
        """Return patterns of names in files that are not part of the model."""
        return ()

    @property
    def cacheable(self) -> int:
        """Return the longest text, in tokens, for which keys and values can be cached.

        0 means that the network has no cache.
        """
        return self.max_position_embeddings

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text."""
        if isinstance(self.eos_token_id, tuple):
            return self.eos_token_id
        return () if self.eos_token_id is None else (self.eos_token_id,)

    def width(self, tier: int) -> int:
        """Return the FFN hidden units of a tier, `intermediate_size / 2^tier`. Raises
        WidthNotDivisible.
        """
        check_divisible(self.intermediate_size, tier)
        return self.intermediate_size >> tier

    def size(self, tier: int) -> int:
        """Return the size that the chain shows for a tier: here the width."""
        return self.width(tier)

    def kept(self, tier: int) -> str:
        """Return a description of what a tier keeps."""
        return f"FFN width {self.width(tier):,}"

    def possible_tiers(self) -> int:
        """Return how many tiers this model can be cut into."""
        for tier in range(1, MAX_TIERS):
            try:
                self.width(tier)
            except ModelConfigError:
                return tier
        return MAX_TIERS

    def tensor_plan(self, tier: int) -> TensorPlan | str:
        """Return how ranks cut a tier's matrices, or why they cannot. Raises ModelConfigError."""
        del tier
        return "its config class does not say how to cut matrices"

    def stored_name(self, name: str, tier: int) -> str:
        """Return the name of a tensor in a tier's own files."""
        del tier
        return name

    def pieces(self) -> Mapping[str, FileTensor]:
        """Return the tensors that files store under other names or in parts, by name in the file.

        The parts of a tensor cover it completely. Raises ModelConfigError.
        """
        return {}

    def elastic_dim(self, name: str) -> Literal[0, 1] | None:
        """Return the dimension that levels cut, or None if every tier holds all of it."""
        for suffix, dim in self.ELASTIC_DIMS.items():
            if name.endswith("." + suffix):
                return dim
        return None

    def balances(self, name: str) -> bool:
        """Return whether a vector balances the use of experts (`optim.moe_bias`).

        Its `grad` then counts how often each expert was chosen since gradients were cleared.
        """
        del name
        return False

    @classmethod
    def known(cls, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of these fields in a `config.json`, with the full width.

        As in transformers, null means false for a flag and absent for other fields. A null token
        stays null.
        """
        _, width = stored_tier(hf_config)
        if not width:
            raise ModelConfigError("config.json: intermediate_size is missing")
        # null: the model has no such token
        tokens = {key: hf_config[key] for key in _TOKEN_KEYS if key in hf_config}
        known = {
            key: hf_config[key] for key in cls.model_fields if hf_config.get(key) is not None
        } | tokens
        null = [key for key in hf_config if hf_config[key] is None and key in cls.model_fields]
        known |= {key: False for key in null if cls.model_fields[key].annotation is bool}
        if isinstance(known.get("eos_token_id"), list):
            known["eos_token_id"] = tuple(known["eos_token_id"])
        return known | {"intermediate_size": width}

    @classmethod
    def checked(cls, known: Mapping[str, Any]) -> Self:
        """Return the config with these fields. Raises ModelConfigError."""
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            raise ModelConfigError(
                f"config.json: {_sentence(error)}", "Correct it, or use another checkpoint"
            ) from None

    def common_hf(self, tier: int) -> dict[str, Any]:
        """Return all fields of a tier and both matformer keys, as JSON values."""
        ends = (
            list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        )
        return self.model_dump() | {
            "eos_token_id": ends,
            "model_type": self.MODEL_TYPE,
            "torch_dtype": "float32",
            "intermediate_size": self.width(tier),
            "matformer_tier": tier,
            "matformer_base_intermediate_size": self.intermediate_size,
        }


_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")


class WidthNotDivisible(ModelConfigError):
    """The FFN width cannot be halved often enough for the tiers."""


def check_divisible(width: int, halvings: int, key: str = "intermediate_size") -> None:
    """Raise WidthNotDivisible, with the nearest valid widths, if tiers cannot halve a width."""
    if not 0 <= halvings < MAX_TIERS:
        raise ModelConfigError(
            f"tier {halvings} is out of range", f"Use a tier from 0 to {MAX_TIERS - 1}"
        )
    step = 1 << halvings
    if width % step:
        below = width - width % step
        nearest = f"{below} or {below + step}" if below else str(step)
        raise WidthNotDivisible(
            f"{key} {width} is not divisible by {step}, as tier {halvings} requires",
            f"Use the nearest valid width: {nearest}",
        )


def stored_tier(hf_config: Mapping[str, Any]) -> tuple[int, int]:
    """Return (tier, tier-0 width) as a `config.json` declares them. A missing width is 0.

    Raises ModelConfigError when `matformer_tier`, `matformer_base_intermediate_size` and
    `intermediate_size` disagree.
    """
    size = _positive_int(hf_config, "intermediate_size")
    tier = hf_config.get("matformer_tier")
    base = _positive_int(hf_config, "matformer_base_intermediate_size")
    names_tiers = bool(hf_config.get("matformer_tiers"))  # if so, a tier's width need not be a half
    if size is None and tier in (None, 0) and base is None:
        return 0, 0  # a model that uses another key for the width
    if size is None:
        raise ModelConfigError("config.json: intermediate_size is missing")
    if tier is None:
        if base is None or names_tiers:
            return 0, size
        tier = (base // size).bit_length() - 1
    if not isinstance(tier, int) or isinstance(tier, bool) or not 0 <= tier < MAX_TIERS:
        raise ModelConfigError(
            f"config.json: matformer_tier must be an integer from 0 to {MAX_TIERS - 1}, not {short_repr(tier)}"
        )
    if base is None and (tier == 0 or not names_tiers):
        base = size << tier
    if base is None:
        raise ModelConfigError(
            "config.json: matformer_base_intermediate_size is missing", "Export the tier again"
        )
    if not names_tiers and size << tier != base:
        raise ModelConfigError(
            f"config.json: intermediate_size {size} is not matformer_base_intermediate_size {base} / 2^{tier}",
            "Correct the three keys, or export the tier again from the full checkpoint",
        )
    return tier, base


def _positive_int(hf_config: Mapping[str, Any], key: str) -> int | None:
    value = hf_config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 20:
        raise ModelConfigError(
            f"config.json: {key} must be an integer from 1 to {1 << 20}, not {short_repr(value)}"
        )
    return value


def _sentence(error: ValidationError) -> str:
    messages: dict[str, str] = {}
    for problem in error.errors():
        key = str(problem["loc"][0]) if problem["loc"] else ""
        messages.setdefault(
            key, f"{key}: {problem['msg']}" if key else problem["msg"].removeprefix("Value error, ")
        )
    return "; ".join(messages.values())
