"""The architectures this client has, and which of them a `config.json` is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.config import ModelConfig, ModelConfigError

ARCHITECTURES: Mapping[str, type[ModelConfig]] = {config.MODEL_TYPE: config for config in (LlamaConfig,)}
"""By the `model_type` of a `config.json`."""


def config_of(hf_config: Mapping[str, Any]) -> ModelConfig:
    """The full model that a `config.json` describes, which may belong to a tier's slice; a Llama unless it says else.

    Raises ModelConfigError when the file contradicts itself or asks for something that no network here computes.
    """
    named = hf_config.get("model_type") or LlamaConfig.MODEL_TYPE
    if not isinstance(named, str) or named not in ARCHITECTURES:
        raise ModelConfigError(
            f"config.json: model_type {named!r} is not supported",
            f"use a checkpoint of one of: {', '.join(ARCHITECTURES)}",
        )
    return ARCHITECTURES[named].from_hf(hf_config)
