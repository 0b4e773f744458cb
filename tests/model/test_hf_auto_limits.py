"""Untrusted `config.json` files: oversized numbers and keys that import code are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from aftermath.model.arch import hf_auto_document
from aftermath.model.arch.hf_auto_document import check_document
from aftermath.model.architectures import config_of, is_of, is_type_of
from aftermath.model.checkpoint import load
from aftermath.model.config import ModelConfigError
from aftermath.model.json_documents import CheckpointError
from aftermath.model.schema import StateInputs, state_of_inputs, state_schema
from aftermath.rules.state import Architecture

pytest.importorskip("transformers")

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
}
TOO_LARGE: list[dict[str, Any]] = [
    {"model_type": "olmo2", "head_dim": 10**12},
    {"model_type": "olmo2", "head_dim": 1e12},
    {"model_type": "dots3_note_text", "num_hidden_layers": 1048576},
    {"model_type": "roformer", "num_hidden_layers": 257},
    {"model_type": "afmoe", "num_experts": 1 << 20},
    {"model_type": "gpt2", "n_layer": 10**25},
    {"model_type": "gpt2", "n_embd": 1 << 30},
    {"model_type": "gpt2", "num_labels": 1 << 31},
    {"model_type": "gpt2", "n_positions": 1 << 40},
    {"model_type": "gemma3", "text_config": {"head_dim": 10**12}},
    {"model_type": "gpt2", "layer_types": [{"num_experts": 1 << 31}]},
    {"model_type": "gpt2", "attention_layers": [1 << 31]},
    {"model_type": "gpt_neo", "attention_types": [[["global"] * 200, 1 << 20]]},
]
CODE: list[dict[str, Any]] = [
    {"auto_map": {"AutoConfig": "x.y"}},
    {"text_config": {"auto_map": {"AutoConfig": "x.y"}}},
    {"quantization_config": {"bits": 4}},
    {"attribute_map": {"hidden_size": "a"}},
    {"attribute_map": "x"},
    {"text_config": {"quantization_config": {"quant_method": "quark"}}},
    {"layers": [{"compression_config": {"a": 1}}]},
    {"vision_config": {"model_type": "timm_wrapper", "architecture": "hf_hub:mallory/m"}},
    {"vision_config": {"use_pretrained_backbone": True, "backbone": "resnet50"}},
]
CHOICES: list[dict[str, Any]] = [
    {"attn_implementation": "mallory/kern"},
    {"_attn_implementation": "mallory/kern"},
    {"_attn_implementation_internal": "mallory/kern"},
    {"experts_implementation": "mallory/kern"},
    {"attn_implementation": {"": "mallory/kern"}},
    {"_attn_implementation_autoset": True},
    {"trust_remote_code": True, "code_revision": "main", "use_kernels": True},
]
LARGEST: dict[str, Any] = {
    "vocab_size": 256_000,
    "hidden_size": 18_432,
    "intermediate_size": 73_728,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "linear_value_head_dim": 256,
    "n_routed_experts": 2048,
    "max_position_embeddings": 10_485_760,
    "rope_theta": 10_000_000_000,
    "pad_token_id": 151_643,
    "sliding_window": 131_072,
    "masked_bias": -1e9,
    "num_labels": 1000,
}


@pytest.mark.parametrize("fields", TOO_LARGE, ids=json.dumps)
def test_oversized_number_is_refused_before_config_is_built(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoConfig

    def build(*_: object, **__: object) -> None:
        raise AssertionError("transformers was asked")

    monkeypatch.setattr(AutoConfig, "for_model", build)
    with pytest.raises(ModelConfigError, match=r"config\.json: '\w+' must be at most \d+, not "):
        config_of(fields)


def test_masks_larger_than_their_bound_are_refused_unbuilt() -> None:
    """`gpt_neo` allocates a mask of positions x positions in every layer."""
    config = {
        "model_type": "gpt_neo",
        "max_position_embeddings": 1 << 17,
        "num_layers": 1,
        "attention_types": [[["local"], 1]],
        "hidden_size": 16,
        "num_heads": 2,
        "vocab_size": 64,
    }
    with pytest.raises(ModelConfigError, match=r"need 16\.0 GiB, which exceeds 0\.25 GiB"):
        hf_auto_document.shapes_of(json.dumps(config))


@pytest.mark.parametrize("depth", [40, 900, 20_000])
def test_deeply_nested_config_is_a_config_error(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    with pytest.raises(ModelConfigError, match="not a JSON object"):
        hf_auto_document.config_of_document(f'{{"model_type": "gpt2", "layers": {nested}}}')


def test_numbers_of_largest_models_are_accepted() -> None:
    check_document(LARGEST)


@pytest.mark.parametrize("change", CODE, ids=json.dumps)
def test_key_with_code_or_weights_is_refused_at_any_depth(change: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match="is not supported"):
        config_of(GPT2 | change)


@pytest.mark.parametrize("change", CHOICES, ids=json.dumps)
def test_key_selecting_code_never_reaches_transformers(change: dict[str, Any]) -> None:
    config = config_of(GPT2 | change | {"nested": change})
    assert "kern" not in json.dumps(config.to_hf())
    assert config == config_of(GPT2 | {"nested": {}})


def test_schema_document_selecting_code_is_refused() -> None:
    document = state_schema(GPT2, 1).document()
    model = json.loads(document["model"]["document"]) | {"attn_implementation": "mallory/kern"}
    inputs = StateInputs(document["model"] | {"document": json.dumps(model)}, document["widths"])
    with pytest.raises(ModelConfigError, match="attn_implementation is not supported"):
        state_of_inputs(inputs)


def test_network_of_transformers_has_hub_kernels_off() -> None:
    from transformers.integrations import hub_kernels

    hub_kernels._kernels_enabled = True
    network = hf_auto_document.network_of(json.dumps(GPT2))
    assert network.config._attn_implementation in ("eager", "sdpa")
    assert hub_kernels._kernels_enabled is False
    assert os.environ["USE_HUB_KERNELS"] == "0"


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        (None, Architecture.HF_LLAMA),
        ("qwen3", Architecture.HF_LLAMA),
        ("deepseek_v3", Architecture.HF_DEEPSEEK),
        ("nanogpt", Architecture.HF_NANOGPT),
        ("gpt2", Architecture.HF_AUTO),
        (["gpt2"], Architecture.HF_AUTO),
    ],
)
def test_is_of_recognises_architecture_by_name(
    model_type: object, architecture: Architecture
) -> None:
    assert [one for one in Architecture if is_of({"model_type": model_type}, one)] == [architecture]


def test_is_type_of_distinguishes_transformers_models() -> None:
    config = config_of(GPT2)
    assert is_type_of({"model_type": "gpt2"}, config)
    assert not any(
        is_type_of({"model_type": other}, config) for other in ("olmo2", "llama", None, ["gpt2"])
    )


def test_missing_experts_are_refused_before_allocation(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
    }
    document = {"model_type": "mixtral", "vocab_size": 64, "num_local_experts": 512, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(document))
    save_file({"model.norm.weight": torch.ones(4096)}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"has 16,\d+ bytes of weights, too few for the [\d,]+ numbers of config\.json",
    ):
        load(tmp_path, 0)
