"""Weights under published names: without the base model's prefix, with masks, and in shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aftermath.model.checkpoint import load
from aftermath.model.json_documents import CheckpointError

torch.set_num_threads(1)
transformers = pytest.importorskip("transformers")

Weights = dict[str, Tensor]
ROTARY: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "tie_word_embeddings": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "gpt_neox": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    "gpt_neo": {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global"], 2]],
    },
    "opt": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 32,
        "word_embed_proj_dim": 16,
    },
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    "gemma": ROTARY,
    "qwen3": ROTARY,
    "llama": ROTARY,
}
MASK = torch.ones(1, 1, 32, 32)


def without_prefix(prefix: str) -> Callable[[Weights], Weights]:
    """Return tensors under the names of a checkpoint saved from the base model."""
    return lambda weights: {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def with_buffers(
    attention: str, *, dtype: torch.dtype = torch.float32
) -> Callable[[Weights], Weights]:
    """Add the masks and rotary frequencies that transformers before 4.40 saved."""

    def rename(weights: Weights) -> Weights:
        buffers: Weights = {}
        for layer in range(2):
            name = attention.format(layer)
            buffers[f"{name}.bias"] = MASK.to(dtype, copy=True)
            buffers[f"{name}.masked_bias"] = torch.tensor(-1e9)
            buffers[f"{name}.rotary_emb.inv_freq"] = torch.ones(4)
        return weights | buffers

    return rename


def with_head(embedding: str, head: str) -> Callable[[Weights], Weights]:
    """Add a stored copy of a tied output head."""
    return lambda weights: weights | {head: weights[embedding].clone()}


PUBLISHED: list[tuple[str, str, list[Callable[[Weights], Weights]]]] = [
    ("GPT-2", "gpt2", [without_prefix("transformer."), with_buffers("h.{}.attn")]),
    ("DialoGPT", "gpt2", [with_buffers("transformer.h.{}.attn")]),
    ("GPT-2 with a head", "gpt2", [with_head("transformer.wte.weight", "lm_head.weight")]),
    ("Pythia", "gpt_neox", [with_buffers("gpt_neox.layers.{}.attention", dtype=torch.uint8)]),
    ("GPT-Neo", "gpt_neo", [with_buffers("transformer.h.{}.attn.attention", dtype=torch.bool)]),
    ("OPT", "opt", [without_prefix("model.")]),
    ("BLOOM", "bloom", [without_prefix("transformer.")]),
    ("Gemma", "gemma", [with_head("model.embed_tokens.weight", "lm_head.weight")]),
    ("Qwen3-Embedding", "qwen3", [without_prefix("model.")]),
    ("Llama 2", "llama", [with_buffers("model.layers.{}.self_attn.unused")]),
]


def save(place: Path, kind: str) -> Weights:
    torch.manual_seed(1)
    common = {
        "vocab_size": 64,
        "max_position_embeddings": 32,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = transformers.AutoConfig.for_model(kind, **common, **KINDS[kind])
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(place)
    return dict(load_file(place / "model.safetensors"))


@pytest.mark.parametrize(
    ("kind", "renames"), [case[1:] for case in PUBLISHED], ids=[case[0] for case in PUBLISHED]
)
def test_load_published_names_gives_equal_tensors(
    kind: str, renames: list[Callable[[Weights], Weights]], tmp_path: Path
) -> None:
    weights = save(tmp_path, kind)
    expected = load(tmp_path, 0)
    for rename in renames:
        weights = rename(weights)
    if kind == "llama":  # Llama saved only its frequencies
        weights = {
            name: tensor
            for name, tensor in weights.items()
            if ".unused." not in name or "inv_freq" in name
        }
    save_file(weights, tmp_path / "model.safetensors")
    loaded = load(tmp_path, 0)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_load_without_prefix_skips_unneeded_shards(tmp_path: Path) -> None:
    weights = save(tmp_path, "qwen3")
    document = json.loads((tmp_path / "config.json").read_text())
    entry = {"layers": [0], "intermediate_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(document | {"matformer_tiers": [entry]}))
    expected = load(tmp_path, 1)
    (tmp_path / "model.safetensors").unlink()
    bare = without_prefix("model.")(weights)
    second = {name: tensor for name, tensor in bare.items() if name.startswith("layers.1.")}
    save_file(
        {name: tensor for name, tensor in bare.items() if name not in second},
        tmp_path / "a.safetensors",
    )
    index = {name: "b.safetensors" if name in second else "a.safetensors" for name in bare}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    loaded = load(tmp_path, 1)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model.norm.weight": torch.ones(16)}, "norm.weight is also in another shard|is also in"),
        ({"layers.0.extra.weight": torch.ones(16)}, "holds 'layers.0.extra.weight'"),
        ({"layers.0.attn.scale": torch.ones(16)}, "holds 'layers.0.attn.scale'"),
    ],
)
def test_load_strange_name_without_prefix_is_refused(
    change: Weights, says: str, tmp_path: Path
) -> None:
    bare = without_prefix("model.")(save(tmp_path, "qwen3"))
    save_file(bare | change, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=says):
        load(tmp_path, 0)
