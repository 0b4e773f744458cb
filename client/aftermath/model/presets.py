"""Model presets by name, and the limits of the sizes in a `config.json`.

A preset is only a `config.json`. Help pages import this module, so it imports no pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class SizeLimits(NamedTuple):
    """The minimum and the maximum of a size."""

    ge: int
    le: int


LIMITS: Mapping[str, SizeLimits] = MappingProxyType(
    {
        "vocab_size": SizeLimits(2, 1 << 22),
        "intermediate_size": SizeLimits(1, 1 << 20),
        "max_position_embeddings": SizeLimits(1, 1 << 24),
        "hidden_size": SizeLimits(2, 1 << 16),
        "num_hidden_layers": SizeLimits(1, 512),
        "num_attention_heads": SizeLimits(1, 1 << 10),
        "num_key_value_heads": SizeLimits(1, 1 << 10),
        "head_dim": SizeLimits(2, 1 << 12),
    }
)


_LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": None}
_NANOGPT = {
    "model_type": "nanogpt",
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
}
_DEEPSEEK = {
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": None,
    "first_k_dense_replace": 1,
}


def _llama(
    hidden: int, layers: int, heads: int, kv_heads: int, width: int, **more: Any
) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": width}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return _LLAMA | sizes | heads_of | {"vocab_size": 32_000} | more


def _nanogpt(hidden: int, layers: int, heads: int, width: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": width}
    ideas = {"x0_residual": True, "unet_skips": True}
    return _NANOGPT | sizes | ideas | {"num_attention_heads": heads, "vocab_size": 50_257} | more


def _deepseek(
    version: int, hidden: int, layers: int, heads: int, width: int, **more: Any
) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": width}
    head = {
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "num_attention_heads": heads,
    }
    experts = {"n_routed_experts": 16, "vocab_size": 32_000, "tie_word_embeddings": True}
    return _DEEPSEEK | {"model_type": f"deepseek_v{version}"} | sizes | head | experts | more


_LIKE_LITE = {
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
}
_LIKE_V3 = {"q_lora_rank": 192, "kv_lora_rank": 96, "n_shared_experts": 1, "num_experts_per_tok": 4}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "llama-1m": _llama(128, 4, 4, 2, 512, vocab_size=257),
    "nanogpt-0.9m": _nanogpt(128, 4, 4, 512, vocab_size=257, value_embeddings=2),
    "llama-20m": _llama(320, 8, 5, 5, 864, tie_word_embeddings=True),
    "deepseek-v2-21m": _deepseek(2, 256, 6, 4, 1024, moe_intermediate_size=160, **_LIKE_LITE),
    "deepseek-v3-29m": _deepseek(
        3, 320, 8, 5, 1024, moe_intermediate_size=128, n_group=4, topk_group=2, **_LIKE_V3
    ),
    "nanogpt-124m": _nanogpt(
        768, 12, 12, 3072, tie_word_embeddings=True, max_position_embeddings=1024
    ),
    "llama-134m": _llama(768, 12, 12, 12, 2048),
    "llama-1.1b": _llama(2048, 22, 32, 4, 5632),
}
"""`config.json` without a tokenizer's tokens; each may be halved for four tiers or more."""
