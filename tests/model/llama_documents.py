"""`config.json` documents of Llamas: equal models in different keys, and different models."""

from __future__ import annotations

from typing import Any

import torch

LENGTH = 96
PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.5,
}
BASE = {"rope_type": "default", "rope_theta": 5e5}
CHANGES: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one key head": {"num_key_value_heads": 1},
    "key heads not given": {"num_key_value_heads": None},
    "wide heads": {"head_dim": 24},
    "odd vocabulary": {"vocab_size": 67},
    "tied": {"tie_word_embeddings": True},
    "swish": {"hidden_act": "swish"},
    "coarse norms": {"rms_norm_eps": 1e-3},
    "rope base": {"rope_theta": 500000},
    "rope table": {"rope_parameters": BASE},
    "rope table over its own key": {"rope_parameters": BASE, "rope_theta": 1e4},
    "rope table without a base": {"rope_parameters": {"rope_type": "default"}, "rope_theta": 7e4},
    "older rope table": {"rope_scaling": {"type": "default"}, "rope_theta": 2e4},
    "two rope tables that agree": {"rope_scaling": BASE, "rope_parameters": BASE},
    "keys that change nothing": {
        "pretraining_tp": 2,
        "torch_dtype": "bfloat16",
        "logits_scaling": 3.0,
        "pad_token_id": 3,
    },
}


def document(change: dict[str, Any]) -> dict[str, Any]:
    """Return a whole config.json. Keys with the value None are left out."""
    return {key: value for key, value in (PLAIN | change).items() if value is not None}


def tokens(vocab_size: int) -> torch.Tensor:
    """Return token ids [1, LENGTH] that are equal in every version of torch."""
    return ((torch.arange(LENGTH) * 37 + 11) % vocab_size)[None]
