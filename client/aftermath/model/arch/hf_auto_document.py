"""Derive network, tensors, file names and tiers from a config document of transformers.

Any peer may send a document, so its numbers are bounded before transformers reads them, and keys
that import code or fetch models are refused. Shapes come from networks without numbers.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.errors import short_repr
from aftermath.model.config import FileTensor, ModelConfigError

_BOUNDS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(words), most)
    for words, most in (
        (r"vocab", 1 << 22),
        # `mpt` computes a table of this many positions per head in every pass
        (r"^max_seq_len$", 1 << 18),
        (r"theta|_base$|_freq$|_id$|seed|_limit$|mask_value", 1 << 40),
        (r"position|length|seq|ctx|context|window", 1 << 24),
        (r"label", 1 << 16),
        (r"head_dim|headdim", 1 << 12),
        (r"size|dim|width|inner|rank|channels", 1 << 20),
        # transformers takes about 2 s to build 256 layers, and repeats lists of `attention_types`
        (r"layer|depth|block|stage|types", 1 << 8),
        (r"expert|head|group", 1 << 12),
    )
)
"""Maximum value of keys that contain one of these words. The first match counts."""
_MOST = 1 << 20
"""Maximum value of any other key."""
_CODE = frozenset(
    {"auto_map", "quantization_config", "compression_config", "attribute_map", "sub_configs"}
)
"""Keys that make transformers import code from the checkpoint or from a package."""
_DOWNLOADS = frozenset({"backbone", "use_timm_backbone", "use_pretrained_backbone"})
"""Keys that make transformers fetch another model."""
_CHOICES = frozenset({"use_kernels", "kernel_config", "trust_remote_code", "code_revision"})
"""Keys that choose an implementation without changing the function (see also `_is_choice`)."""


def without_choices(parsed: Any) -> Any:
    """Return the document without keys that choose an implementation, at any depth.

    If `kernels` is installed, `attn_implementation: "owner/name"` makes transformers run a kernel
    from the Hub.
    """
    if isinstance(parsed, dict):
        return {key: without_choices(value) for key, value in parsed.items() if not _is_choice(key)}
    if isinstance(parsed, list):
        return [without_choices(value) for value in parsed]
    return parsed


def check_document(parsed: Any) -> None:
    """Raise ModelConfigError for oversized numbers and for keys that import code."""
    for key, value in _entries(parsed, ""):
        if (key in _CODE and value) or _is_choice(key):
            raise ModelConfigError(
                f"config.json: {key[:60] if key.isprintable() else short_repr(key)} is not supported",
                "Use a checkpoint with plain weights and without code",
            )
        if (key in _DOWNLOADS and value) or (key == "model_type" and str(value).startswith("timm")):
            raise ModelConfigError(
                f"config.json: {short_repr(key)} {short_repr(value)} is not supported",
                "Use a text-only model",
            )
        if isinstance(value, int | float) and value > (most := _most(key)):
            raise ModelConfigError(
                f"config.json: {short_repr(key)} must be at most {most}, not {short_repr(value)}",
                f"Correct {short_repr(key)}",
            )


def _is_choice(key: str) -> bool:
    return key.startswith("_") or "implementation" in key or key in _CHOICES


def _most(key: str) -> int:
    return next((most for words, most in _BOUNDS if words.search(key.lower())), _MOST)


def _entries(parsed: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield each value of a document with its key, at any depth. Items have the list's key."""
    if isinstance(parsed, dict):
        for name, value in parsed.items():
            yield name, value
            if isinstance(value, dict | list):
                yield from _entries(value, name)
    elif isinstance(parsed, list):
        for value in parsed:
            if isinstance(value, dict | list):
                yield from _entries(value, key)
            else:
                yield key, value


_INSTALL = "Install transformers for this package: pip install 'aftermath[hf]'"
LONGEST = 1 << 16  # characters of a config's document
_MODULES = 1 << 14
"""Maximum modules of a network."""
_PARAMETERS = 1 << 16
"""Maximum parameter tensors of a network."""
_MAX_BUFFER_BYTES = 1 << 28
"""Maximum bytes of a network's buffers. `gpt_neo` has a mask of positions x positions per layer."""
_CUTS = 1 << 18
"""Maximum tensor operations of a conversion to the file's format."""
# Feed-forwards can be cut if tensor names show independent hidden units and no other tensor has
# their width. A tier is transformers' network with a smaller width. Building one shows which
# dimensions shrink.
WIDTHS = ("intermediate_size", "n_inner", "ffn_dim")
"""Names of the feed-forward width in configs of transformers."""
_FEED_FORWARD = re.compile(
    r"\.(gate_proj|up_proj|down_proj|fc1|fc2|fc_in|fc_out|c_fc|c_proj|dense_h_to_4h|dense_4h_to_h)\.(weight|bias)$"
)


def is_known(model_type: str) -> bool:
    """Return whether transformers has this causal model. Raises ModelConfigError without it."""
    _transformers(model_type)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def network_of(document: str) -> Any:
    """Return an untrained network of transformers. Raises ModelConfigError if it brings code."""
    transformers = _transformers("it")
    config = config_of_document(document)
    # grouped matrix products do not exist in every precision on every device
    config._experts_implementation = "eager"
    _forbid_hub_kernels()
    with _bounded_modules():
        network = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    attention = getattr(network.config, "_attn_implementation", None)
    if not type(network).__module__.startswith("transformers.") or attention not in (
        None,
        "eager",
        "sdpa",
    ):
        raise ModelConfigError(
            f"config.json: it would run code of {type(network).__module__} with attention {short_repr(attention)}",
            "Use a checkpoint with plain weights and without code",
        )
    return network


def _forbid_hub_kernels() -> None:
    """Disable kernels from the Hub, which transformers fetches if `kernels` is installed."""
    from transformers.integrations import hub_kernels

    hub_kernels._kernels_enabled = False


@lru_cache(maxsize=2)
def _shapes_alone(document: str) -> Any:
    """Return `network_of` on the meta device, cached per document."""
    import torch

    with torch.device("meta"):
        return network_of(document)


@contextmanager
def _bounded_modules() -> Iterator[None]:
    """Raise ModelConfigError if the block creates more modules or parameters than allowed."""
    from torch.nn.modules import module

    modules = _Bounded("modules", _MODULES)
    parameters = _Bounded("parameter tensors", _PARAMETERS)
    handles = (
        module.register_module_module_registration_hook(lambda *_: modules.one_more()),
        module.register_module_parameter_registration_hook(lambda *_: parameters.one_more()),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Bounded:
    """Count what a document creates. `one_more` raises ModelConfigError above the limit."""

    def __init__(self, counted: str, most: int) -> None:
        self._counted = counted
        self._most = most
        self._count = 0

    def one_more(self) -> None:
        self._count += 1
        if self._count > self._most:
            raise ModelConfigError(
                f"config.json: the model has more than {self._most} {self._counted}",
                "Correct the number of layers or experts",
            )


def canonical(parsed: Mapping[str, Any]) -> str:
    """Return the canonical document of a `config.json`. Raises ModelConfigError."""
    try:
        text = json.dumps(parsed, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ModelConfigError(f"config.json: {error}", "Use the published file") from None
    if len(text) > LONGEST:
        raise ModelConfigError(
            f"config.json: it is longer than {LONGEST} characters", "Use the published file"
        )
    return text


def _transformers(asked_for: str) -> Any:
    os.environ["USE_HUB_KERNELS"] = "0"  # read when transformers is imported
    try:
        import transformers
    except ImportError:
        raise ModelConfigError(
            f"config.json: model_type {short_repr(asked_for)} requires transformers",
            _INSTALL,
        ) from None
    return transformers


def config_of_document(document: str) -> Any:
    """Return transformers' config of a document. Raises ModelConfigError if it is refused."""
    try:
        parsed = json_value(document)
    except Malformed:
        parsed = None
    if not isinstance(parsed, dict):
        raise ModelConfigError("config.json: it is not a JSON object", "Use the published file")
    check_document(parsed)
    name = parsed.pop("model_type", "")
    if not isinstance(name, str) or not is_known(name):
        raise ModelConfigError(
            f"config.json: model_type {short_repr(name)} is not a causal language model of transformers",
            "Use another model",
        )
    try:
        return _transformers(name).AutoConfig.for_model(name, **parsed)
    except Exception as error:  # transformers may raise anything for a bad document
        raise ModelConfigError(
            f"config.json: transformers rejects it: {short_repr(str(error))}", "Correct it"
        ) from None


@lru_cache(maxsize=8)
def shapes_of(document: str) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each parameter by its name in transformers. Raises ModelConfigError."""
    try:
        network = _shapes_alone(document)
    except ModelConfigError:
        raise
    except Exception as error:  # transformers may raise anything for impossible sizes
        raise ModelConfigError(
            f"config.json: transformers cannot build it: {short_repr(str(error))}", "Correct it"
        ) from None
    buffer_bytes = sum(buffer.numel() * buffer.element_size() for buffer in network.buffers())
    if buffer_bytes > _MAX_BUFFER_BYTES:
        raise ModelConfigError(
            f"config.json: the masks and tables of the network need {buffer_bytes / 2**30:.1f} GiB, which exceeds "
            f"{_MAX_BUFFER_BYTES / 2**30} GiB",
            "Use a model with fewer positions",
        )
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    empty = next(
        (name for name, shape in shapes.items() if not shape or math.prod(shape) == 0), None
    )
    if empty is not None:
        raise ModelConfigError(
            f"config.json: {empty} has the shape {shapes[empty]}, but only tensors with at least one "
            "entry and one dimension can be trained",
            "Use another model",
        )
    return shapes


@lru_cache(maxsize=8)
def pieces_of(document: str) -> Mapping[str, FileTensor]:
    """Return `ModelConfig.pieces`. Raises ModelConfigError."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers.core_model_loading import revert_weight_conversion

    class Views(TorchDispatchMode):
        """Replaces the copies of a conversion with views, which show their source tensor."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            cuts.one_more()
            return (
                args[0] if func is torch.ops.aten.clone.default else func(*args, **(kwargs or {}))
            )

    network = _shapes_alone(document)
    cuts = _Bounded("tensors in its files", _CUTS)
    tensors = {name: parameter.detach() for name, parameter in network.named_parameters()}
    names = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}
    try:
        with torch.no_grad(), Views():  # type: ignore[no-untyped-call]
            filed = revert_weight_conversion(network, dict(tensors))
        file_tensors = {
            listed: FileTensor(
                names[part.untyped_storage()._cdata],
                tuple(part.shape),
                part.stride(),
                part.storage_offset(),
            )
            for listed, part in filed.items()
        }
    except ModelConfigError:
        raise
    except Exception as error:  # the conversion needs an operation that is not a view
        raise ModelConfigError(
            f"config.json: transformers changes this model's weights when it saves them: {short_repr(str(error))}",
            "Use another model",
        ) from None
    numbers = dict.fromkeys(tensors, 0)
    for piece in file_tensors.values():
        numbers[piece.name] += math.prod(piece.shape)
    if any(tensors[name].numel() != count for name, count in numbers.items()):
        raise ModelConfigError(
            "config.json: transformers does not save all of this model's weights",
            "Use another model",
        )
    whole = {name: (name, tuple(tensor.shape)) for name, tensor in tensors.items()}
    return {
        listed: piece
        for listed, piece in file_tensors.items()
        if whole.get(listed) != (piece.name, piece.shape)
    }


@lru_cache(maxsize=8)
def tables_of(document: str) -> tuple[str, str]:
    """Return `ModelConfig.tables`."""
    network = _shapes_alone(document)
    names = {id(module): name for name, module in network.named_modules()}
    ends = network.get_input_embeddings(), network.get_output_embeddings()
    embedding, output = (f"{names[id(module)]}.weight" for module in ends)
    return embedding, output


class FileNamePatterns(NamedTuple):
    """Patterns of transformers for the names in a model's files."""

    prefix: str
    """Name of the base model with its dot; empty without one."""
    ignored: tuple[str, ...]
    """Regular expressions of names that transformers ignores."""


@lru_cache(maxsize=8)
def file_names_of(document: str) -> FileNamePatterns:
    """Return `ModelConfig.base_prefix` and `ModelConfig.ignored_names`. Raises ModelConfigError."""
    shapes_of(document)  # raises for a network that cannot be built
    network = _shapes_alone(document)
    name = network.base_model_prefix
    prefix = f"{name}." if name and hasattr(network, name) else ""
    return FileNamePatterns(prefix, tuple(network._keys_to_ignore_on_load_unexpected or ()))


@lru_cache(maxsize=8)
def width_of(document: str) -> tuple[str, int] | None:
    """Return the key and the value of the feed-forward width, or None without one.

    Raises ModelConfigError.
    """
    config = config_of_document(document)
    key = _width_key(config.model_type)
    width = getattr(config, key) if key else None
    if key == "n_inner" and width is None:
        width = 4 * config.hidden_size
    return (key, width) if key and type(width) is int and width > 0 else None


@lru_cache(maxsize=64)
def _width_key(model_type: str) -> str | None:
    """Return the key of the feed-forward width for this type, or None if there is none."""
    try:
        # other types keep every key of the file
        blank = config_of_document(canonical({"model_type": model_type}))
    except ModelConfigError:
        return None
    return next((key for key in WIDTHS if key in vars(blank)), None)


def with_width(document: str, width: int) -> str:
    """Return the document of the same model with narrower or wider feed-forwards."""
    key_and_width = width_of(document)
    assert key_and_width is not None
    return canonical(json.loads(document) | {key_and_width[0]: width})


@lru_cache(maxsize=8)
def cuts_of(document: str) -> Mapping[str, Literal[0, 1]] | str:
    """Return the cut dimension of each feed-forward tensor, or why there are no tiers."""
    key_and_width = width_of(document)
    if key_and_width is None or key_and_width[1] < 2:
        return "its config.json has no feed-forward width that can be halved"
    key, width = key_and_width
    try:
        whole = shapes_of(document)
        part = shapes_of(with_width(document, width // 2))
        apart = {piece.name for piece in pieces_of(document).values()}
    except ModelConfigError as error:
        return error.message.removeprefix("config.json: ")
    dims: dict[str, Literal[0, 1]] = {}
    either: tuple[Literal[0, 1], ...] = (0, 1)
    for name, shape in whole.items():
        if (part_shape := part.get(name)) == shape:
            continue
        dim = next(
            (dim for dim in either if part_shape == (*shape[:dim], width // 2, *shape[dim + 1 :])),
            None,
        )
        if (
            dim is None
            or len(shape) > 2
            or shape[dim] != width
            or name in apart
            or not _FEED_FORWARD.search(name)
        ):
            return f"{key} also sets the shape of {name}, which cannot be cut"
        dims[name] = dim
    return (
        dims if dims and whole.keys() == part.keys() else f"none of its tensors has the width {key}"
    )
