"""The key cache of a network gives the same tokens as a full computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.generate import Draft, generate
from aftermath.model.key_cache import TextCache
from aftermath.model.network import LanguageModel

torch.set_num_threads(1)

WINDOW = 12
SHAPE: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = SHAPE | {"num_key_value_heads": 2}
EXPERTS = SHAPE | {
    "moe_intermediate_size": 16,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
NANOGPT_KEYS = {
    "logit_softcap": 15.0,
    "value_embeddings": 1,
    "x0_residual": True,
    "unet_skips": True,
}
YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 6,
    "rope_theta": 1e4,
}
LATER = [
    {"layers": [0, 1, 3]},
    {"layers": [0, 3], "intermediate_size": [64, 16], "num_key_value_heads": 1},
]
FILES: dict[str, dict[str, Any]] = {
    "llama": GROUPED | {"model_type": "llama", "attention_bias": True},
    "yarn": GROUPED | {"model_type": "llama", "rope_parameters": YARN},
    "dynamic": GROUPED
    | {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 8.0}},
    "qwen3": GROUPED | {"model_type": "qwen3", "head_dim": 12},
    "what tiers keep": GROUPED | {"model_type": "llama", "matformer_tiers": LATER},
    "nanogpt": SHAPE | {"model_type": "nanogpt", **NANOGPT_KEYS},
    "deepseek_v2": EXPERTS | {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"},
    "deepseek_v3": EXPERTS | {"model_type": "deepseek_v3"},
}


def built(file: dict[str, Any], tier: int = 0, **fields: Any) -> LanguageModel:
    """Return a network without neutral weights. A tier has its part of the full model's weights."""
    config = config_of(file).model_copy(update=fields)
    noise = torch.Generator().manual_seed(4)
    whole = {
        name: torch.randn(shape, generator=noise) * 0.3 + ("norm" in name)
        for name, shape in config.parameter_shapes().items()
    }
    shapes = config.parameter_shapes(tier)
    return config.build(
        tier, {name: whole[name][tuple(map(slice, shapes[name]))].contiguous() for name in shapes}
    )


def text(length: int, batch: int = 2) -> Tensor:
    return torch.randint(0, 48, (batch, length), generator=torch.Generator().manual_seed(1))


def in_pieces(
    model: LanguageModel, ids: Tensor, cache: TextCache, lengths: tuple[int, ...]
) -> Tensor:
    """Return logits of all tokens, passed in pieces of these lengths."""
    parts = ids.split(list(lengths), dim=1)
    return torch.cat([model.head(model.body(part, cache)) for part in parts], dim=1)


@pytest.mark.parametrize(
    ("name", "tier"), [*((name, 0) for name in FILES), *(("what tiers keep", 1), ("qwen3", 2))]
)
@torch.no_grad()
def test_cached_logits_equal_whole_text(name: str, tier: int) -> None:
    model = built(FILES[name], tier)
    ids = text(WINDOW)
    for lengths in ((1,) * WINDOW, (WINDOW,), (4, 1, 2, 5)):
        cache = TextCache()
        torch.testing.assert_close(
            in_pieces(model, ids, cache, lengths), model(ids), rtol=1e-4, atol=1e-4
        )
        assert cache.length == WINDOW


@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_cache_cut_back_forgets_tokens(name: str) -> None:
    model = built(FILES[name])
    ids = text(WINDOW)
    cache = TextCache()
    in_pieces(model, torch.cat((ids[:, :4], ids.flip(1)[:, :5]), 1), cache, (6, 3))
    cache.cut(11)
    assert cache.length == 9
    cache.cut(4)  # tokens of another text followed here
    assert cache.length == 4
    logits = in_pieces(model, ids[:, 4:], cache, (1, 7))
    torch.testing.assert_close(logits, model(ids)[:, 4:], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def recomputed(model: LanguageModel, prompt: list[int], tokens: int) -> list[int]:
    """Return the likeliest tokens, each from a pass over the whole window. Fail on a tie."""
    ids = list(prompt)
    for _ in range(tokens):
        two = model(torch.tensor([ids[-model.config.max_position_embeddings :]]))[0, -1].topk(2)
        assert two.values[0] - two.values[1] > 1e-3
        ids.append(int(two.indices[0]))
    return ids[len(prompt) :]


# The two most expensive cases use the same cache, so one of them is a slow test.
CACHED = [name for name in FILES if name != "deepseek_v2"] + [
    pytest.param("deepseek_v2", marks=pytest.mark.slow)
]


@pytest.mark.parametrize("name", CACHED)
def test_cached_text_beyond_window_equals_uncached(name: str) -> None:
    model = built(FILES[name])
    expected = recomputed(model, [3, 1, 4], 2 * WINDOW)
    for guesses in (0, 1, 5):
        draft = Draft(built(FILES[name], 1), guesses) if guesses else None
        assert generate(model, [3, 1, 4], new_tokens=2 * WINDOW, draft=draft).ids == expected, (
            f"{guesses} guesses"
        )


def test_dynamic_positions_cache_text_up_to_model_length() -> None:
    """A run's schema has that length but not the window, which may be longer."""
    known = 8
    model = built(FILES["dynamic"], rope_original_length=known)
    assert model.config.cacheable == known < model.config.max_position_embeddings
    expected = recomputed(model, [3, 1, 4], WINDOW)
    for draft in (
        None,
        Draft(model, 4),
        Draft(built(FILES["dynamic"], 1, rope_original_length=known), 3),
    ):
        assert generate(model, [3, 1, 4], new_tokens=WINDOW, draft=draft).ids == expected
    assert generate(built(FILES["dynamic"]), [3, 1, 4], new_tokens=WINDOW).ids != expected, (
        "the scale matters"
    )


@pytest.mark.parametrize(
    ("name", "cacheable"), [("llama", WINDOW), ("dynamic", WINDOW), ("short", 8)]
)
def test_cached_token_is_computed_once(name: str, cacheable: int) -> None:
    model = (
        built(FILES["dynamic"], rope_original_length=8) if name == "short" else built(FILES[name])
    )
    passed: list[int] = []
    body = model.body

    def counted(input_ids: Tensor, cache: TextCache | None = None) -> Tensor:
        passed.append(input_ids.shape[1])
        return body(input_ids, cache)

    object.__setattr__(model, "body", counted)
    generate(model, [3, 1, 4], new_tokens=WINDOW + 2)
    lengths = range(3, WINDOW + 5)
    expected = [1 if length <= cacheable else min(length, WINDOW) for length in lengths]
    assert passed == [3, *expected[1:]]


def test_models_of_transformers_cache_nothing() -> None:
    pytest.importorskip("transformers")
    config = config_of(
        {"model_type": "gpt2", "vocab_size": 48, "n_embd": 16, "n_layer": 1, "n_head": 2}
    )
    params = {name: torch.zeros(shape) for name, shape in config.parameter_shapes().items()}
    assert config.cacheable == 0
    with pytest.raises(ValueError, match="do not support a key cache"):
        config.build(0, params).body(text(3), TextCache())
