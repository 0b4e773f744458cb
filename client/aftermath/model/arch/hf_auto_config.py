"""Any causal language model of transformers, whole: what its `config.json` says, kept as it is.

Decided
- Its function is transformers' own, so a run's members need that package, in versions that compute the same: the
  extra `hf`. No code comes from a checkpoint.
- Checkpoints have the names that published ones have, and transformers' modules may have others: experts that it
  stacks into one tensor are files' tensors one by one. What it does on the way to a file is asked of it once, with
  tensors without numbers; what is more than a view of a parameter is refused. Either kind of names is read.
- What a model keeps beside its parameters (a bias that balances experts, say) would be nobody's to agree on: such a
  checkpoint is refused by the first name that is no parameter's.
- There is one tier. Which dimensions of which tensors could be cut is not known of a model that nobody described here.
- A file costs what it says only up to a bound: numbers of layers, experts and the like are bounded before transformers
  counts to them, and what it makes of them while it does.
- Keys that change no function (names, versions, tokens) are left out, so that two files of one model are one model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from aftermath.base.errors import shown
from aftermath.model.config import ModelConfig, ModelConfigError, Piece

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.arch.hf_auto import HfAuto

_SILENT = frozenset(
    {
        *("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures", "use_cache"),
        *("bos_token_id", "eos_token_id", "decoder_start_token_id", "task_specific_params"),
        *("matformer_tier", "matformer_base_intermediate_size"),
    }
)
_INSTALL = "install transformers beside this package: pip install 'aftermath[hf]'"
_LONGEST = 1 << 16  # characters of a config's document
_COUNTS = re.compile(r"layer|label|expert|depth|block|stage", re.IGNORECASE)
_MANY = 1 << 20
"""The most that a key with one of these words in it may say."""
_MODULES, _CUTS = 1 << 14, 1 << 18
"""Of a network, and what may be done to its tensors on their way to a file."""


class HfAutoConfig(ModelConfig):
    """A `config.json` of a model that only transformers knows."""

    MODEL_TYPE: ClassVar[str] = "hf_auto"
    ELASTIC_DIMS: ClassVar[Mapping[str, Literal[0, 1]]] = {}
    document: str = Field(max_length=_LONGEST)
    """Its keys that change what is computed, as canonical JSON. One that is null is not one that is absent: then
    transformers has a default. The row of the padding token learns nothing there, and is named by this or by default.
    """

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any]) -> Self:
        """As it says there. Raises ModelConfigError without transformers, and for what it does not know."""
        for key in ("auto_map", "quantization_config", "compression_config"):
            if hf_config.get(key):
                raise ModelConfigError(
                    f"config.json: {key} is not supported", "use a checkpoint of plain weights without code of its own"
                )
        if hf_config.get("matformer_tier"):
            raise ModelConfigError("config.json: matformer_tier must be 0 here", "name the full checkpoint")
        said = {key: value for key, value in hf_config.items() if key not in _SILENT}
        made = _made(_canonical(said))
        text = made.get_text_config()
        width = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size
        tokens = {key: hf_config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        if isinstance(tokens["eos_token_id"], list):
            tokens["eos_token_id"] = tuple(tokens["eos_token_id"])
        return cls.checked(
            {
                "document": _canonical(said),
                "vocab_size": text.vocab_size,
                "intermediate_size": width,
                "max_position_embeddings": getattr(text, "max_position_embeddings", None) or 2048,
                "tie_word_embeddings": bool(text.tie_word_embeddings),
            }
            | tokens
        )

    def to_hf(self, tier: int = 0) -> dict[str, Any]:
        """What it was made of, with its tokens."""
        self.width(tier)
        tokens = self.model_dump(include={"bos_token_id", "eos_token_id"})
        said: dict[str, Any] = json.loads(self.document)
        return said | tokens | {"torch_dtype": "float32"}

    def width(self, tier: int) -> int:
        """That of tier 0. Raises ModelConfigError for another."""
        if tier:
            raise ModelConfigError(
                f"a model that only transformers knows has no tier {tier}", "give the run one tier, or another model"
            )
        return self.intermediate_size

    def parameter_shapes(self, tier: int = 0) -> dict[str, tuple[int, ...]]:
        """As transformers names them."""
        self.width(tier)
        return dict(_shapes(self.document))

    def pieces(self) -> Mapping[str, Piece]:
        """What transformers calls otherwise in files, or cuts."""
        return _pieces(self.document)

    @property
    def cacheable(self) -> int:
        """Nothing: what transformers' models keep of a text is of many kinds."""
        return 0

    def tables(self) -> tuple[str, str]:
        """As transformers has them."""
        return _tables(self.document)

    def deviation(self, name: str) -> float | None:
        """Vectors begin as constants."""
        return None if len(_shapes(self.document)[name]) < 2 else 0.02

    def constant(self, name: str) -> float:
        """Biases are nothing; other vectors are of norms."""
        return 0.0 if name.endswith("bias") else 1.0

    def build(self, tier: int, params: Mapping[str, Tensor]) -> HfAuto:
        """transformers' own network."""
        from aftermath.model.arch.hf_auto import HfAuto

        self.width(tier)
        return HfAuto.of(self, tier, params)


def is_known(model_type: str) -> bool:
    """Whether transformers has a causal language model of this type. Raises ModelConfigError without transformers."""
    _transformers(model_type)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def network_of(document: str) -> Any:
    """transformers' network of a config's document, untrained."""
    transformers, made = _transformers("it"), _made(document)
    made._experts_implementation = "eager"  # products in groups are not known in every precision on every device
    with _bounded_modules():
        return transformers.AutoModelForCausalLM.from_config(made, trust_remote_code=False)


@contextmanager
def _bounded_modules() -> Iterator[None]:
    """ModelConfigError for who makes more modules than any model has."""
    from torch.nn.modules.module import register_module_module_registration_hook

    modules = _Bounded("its network has more modules", _MODULES)
    handle = register_module_module_registration_hook(lambda *_: modules.one_more())
    try:
        yield
    finally:
        handle.remove()


class _Bounded:
    """Counts what a document leads to. `one_more` raises ModelConfigError once that is more than of any model."""

    def __init__(self, sentence: str, most: int) -> None:
        self._sentence, self._most, self._count = sentence, most, 0

    def one_more(self) -> None:
        self._count += 1
        if self._count > self._most:
            raise ModelConfigError(
                f"config.json: {self._sentence} than the {self._most} of the largest models",
                "correct its numbers of layers and experts",
            )


def _require_counts(said: Any, key: str = "") -> None:
    """Raises ModelConfigError for more layers, experts or the like than any model has, wherever it says so."""
    if isinstance(said, dict):
        for name, value in said.items():
            _require_counts(value, name)
    elif isinstance(said, list):
        for value in said:
            _require_counts(value, key)
    elif isinstance(said, int) and said > _MANY and _COUNTS.search(key):
        raise ModelConfigError(f"config.json: {shown(key)} is {shown(said)}, and at most {_MANY} here", "correct it")


def _canonical(said: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ModelConfigError(f"config.json: {error}", "take the file as published") from None
    if len(text) > _LONGEST:
        raise ModelConfigError(f"config.json: it is longer than {_LONGEST} characters", "take the file as published")
    return text


def _transformers(asked_for: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise ModelConfigError(
            f"config.json: model_type {shown(asked_for)} is one that only transformers knows", _INSTALL
        ) from None
    return transformers


def _made(document: str) -> Any:
    """transformers' own config of a document. Raises ModelConfigError for one that it does not take."""
    said = json.loads(document)
    _require_counts(said)
    name = said.pop("model_type", "")
    if not isinstance(name, str) or not is_known(name):
        raise ModelConfigError(
            f"config.json: model_type {shown(name)} is no causal language model of transformers", "use another model"
        )
    try:
        return _transformers(name).AutoConfig.for_model(name, **said)
    except Exception as error:  # whatever it does not take
        raise ModelConfigError(
            f"config.json: transformers does not take it: {shown(str(error))}", "correct it"
        ) from None


@lru_cache(maxsize=8)
def _shapes(document: str) -> Mapping[str, tuple[int, ...]]:
    import torch

    try:
        with torch.device("meta"):
            network = network_of(document)
    except ModelConfigError:
        raise
    except Exception as error:  # a shape that it cannot be built in
        raise ModelConfigError(
            f"config.json: transformers cannot build it: {shown(str(error))}", "correct it"
        ) from None
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    empty = next((name for name, shape in shapes.items() if not shape or math.prod(shape) == 0), None)
    if empty is not None:
        raise ModelConfigError(
            f"config.json: {empty} is of shape {shapes[empty]}, and only vectors, matrices and stacks of these are "
            "trained here",
            "use another model",
        )
    return shapes


@lru_cache(maxsize=8)
def _pieces(document: str) -> Mapping[str, Piece]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers.core_model_loading import revert_weight_conversion

    class Views(TorchDispatchMode):
        """Copies that are made for a file are views here, so that it can be seen of what."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cuts.one_more()
            return args[0] if func is torch.ops.aten.clone.default else func(*args, **(kwargs or {}))

    with torch.device("meta"):
        network = network_of(document)
    cuts = _Bounded("its files have more tensors", _CUTS)
    held = {name: parameter.detach() for name, parameter in network.named_parameters()}
    names = {tensor.untyped_storage()._cdata: name for name, tensor in held.items()}
    try:
        with torch.no_grad(), Views():  # type: ignore[no-untyped-call]
            filed = revert_weight_conversion(network, dict(held))
        made = {
            listed: Piece(names[part.untyped_storage()._cdata], tuple(part.shape), part.stride(), part.storage_offset())
            for listed, part in filed.items()
        }
    except ModelConfigError:
        raise
    except Exception as error:  # an operation that is no view
        raise ModelConfigError(
            f"config.json: transformers rewrites this model's weights on their way to a file: {shown(str(error))}",
            "use another model",
        ) from None
    numbers = dict.fromkeys(held, 0)
    for piece in made.values():
        numbers[piece.name] += math.prod(piece.shape)
    if any(held[name].numel() != count for name, count in numbers.items()):
        raise ModelConfigError(
            "config.json: transformers leaves out some of this model's weights on their way to a file",
            "use another model",
        )
    whole = {name: (name, tuple(tensor.shape)) for name, tensor in held.items()}
    return {listed: piece for listed, piece in made.items() if whole.get(listed) != (piece.name, piece.shape)}


@lru_cache(maxsize=8)
def _tables(document: str) -> tuple[str, str]:
    import torch

    with torch.device("meta"):
        network = network_of(document)
    names = {id(module): name for name, module in network.named_modules()}
    ends = network.get_input_embeddings(), network.get_output_embeddings()
    embedding, output = (f"{names[id(module)]}.weight" for module in ends)
    return embedding, output
