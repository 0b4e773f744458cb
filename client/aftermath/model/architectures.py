"""The registry of architectures, and the detection of a `config.json`'s architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.base.errors import short_repr
from aftermath.base.extensions import BadExtension, extensions
from aftermath.model.arch.deepseek_config import DeepseekV2Config, DeepseekV3Config
from aftermath.model.arch.hf_auto_config import HfAutoConfig
from aftermath.model.arch.hf_auto_document import is_known
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.arch.nanogpt_config import NanoGPTConfig
from aftermath.model.arch.transformer_config import TransformerConfig
from aftermath.model.config import ModelConfig, ModelConfigError
from aftermath.model.presets import PRESETS
from aftermath.rules.state import Architecture

_BUILT_IN: tuple[tuple[str, type[ModelConfig]], ...] = (
    (Architecture.HF_LLAMA.value, LlamaConfig),
    (Architecture.HF_DEEPSEEK.value, DeepseekV2Config),
    (Architecture.HF_DEEPSEEK.value, DeepseekV3Config),
    (Architecture.HF_NANOGPT.value, NanoGPTConfig),
    (Architecture.HF_AUTO.value, HfAutoConfig),
)
"""The config class of each built-in architecture."""
_ADDED = extensions("aftermath.architectures", ModelConfig)  # type: ignore[type-abstract]


def _by_type() -> dict[str, tuple[str, type[ModelConfig]]]:
    """Return name and class of each architecture by its types in `config.json`."""
    by_type: dict[str, tuple[str, type[ModelConfig]]] = {}
    for architecture, config in (*_BUILT_IN, *_ADDED.items()):
        for name in config.MODEL_TYPES or (config.MODEL_TYPE,):
            if name in by_type:
                raise BadExtension(
                    f"an installed package registers {architecture} for the model_type {name}, "
                    f"which {by_type[name][0]} already has",
                    "Update the package that adds it, or uninstall it",
                )
            by_type[name] = (architecture, config)
    return by_type


_BY_TYPE = _by_type()


def presets() -> dict[str, Mapping[str, Any]]:
    """Return the `config.json` of each preset by its name, those of installed packages too."""
    return dict(PRESETS) | {
        name: document for config in _ADDED.values() for name, document in config.PRESETS.items()
    }


def architecture_of(hf_config: Mapping[str, Any]) -> str:
    """Return the architecture of a `config.json`: Llama if it names none, else ours or HfAuto's.

    Raises ModelConfigError for an unknown model_type, also if transformers is not installed.
    """
    return _named(hf_config)[0]


def config_type(hf_config: Mapping[str, Any]) -> type[ModelConfig]:
    """Return the class that reads a `config.json`. Raises what `architecture_of` raises."""
    return _named(hf_config)[1]


def is_of(hf_config: Mapping[str, Any], architecture: str) -> bool:
    """Return whether a `config.json` names this architecture, without loading transformers."""
    model_type = hf_config.get("model_type") or LlamaConfig.MODEL_TYPE
    if isinstance(model_type, str) and model_type in _BY_TYPE:
        return _BY_TYPE[model_type][0] == architecture
    return architecture == Architecture.HF_AUTO


def is_type_of(hf_config: Mapping[str, Any], config: ModelConfig) -> bool:
    """Return whether a `config.json` names the type of this model."""
    model_type = hf_config.get("model_type") or LlamaConfig.MODEL_TYPE
    types = (
        (config.model_type,)
        if isinstance(config, HfAutoConfig)
        else config.MODEL_TYPES or (config.MODEL_TYPE,)
    )
    return model_type in types


def config_of(hf_config: Mapping[str, Any]) -> ModelConfig:
    """Return the full model that a `config.json` describes, also from a tier's slice.

    Raises ModelConfigError if the file contradicts itself or describes an unsupported function.
    """
    config = config_type(hf_config).from_hf(hf_config)
    return config.agreed(hf_config) if isinstance(config, TransformerConfig) else config


def _named(hf_config: Mapping[str, Any]) -> tuple[str, type[ModelConfig]]:
    model_type = hf_config.get("model_type") or LlamaConfig.MODEL_TYPE
    if isinstance(model_type, str) and model_type in _BY_TYPE:
        return _BY_TYPE[model_type]
    if not isinstance(model_type, str) or not is_known(model_type):
        raise ModelConfigError(
            f"config.json: model_type {short_repr(model_type)} is not supported",
            f"Use one of {', '.join(_BY_TYPE)}, or a causal language model of transformers",
        )
    return Architecture.HF_AUTO.value, HfAutoConfig
