"""Random models of many families compute the same here as in transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load

torch.set_num_threads(1)
transformers = pytest.importorskip("transformers")

FAMILIES = {
    "gpt2": {
        "activation_function": ("gelu_new", "relu"),
        "scale_attn_by_inverse_layer_idx": (False, True),
    },
    "opt": {"do_layer_norm_before": (True, False), "enable_bias": (True, False)},
    "gpt_neox": {"use_parallel_residual": (True, False), "partial_rotary_factor": (0.25, 1.0)},
    "gptj": {"rotary_dim": (2, 4)},
    "bloom": {"apply_residual_connection_post_layernorm": (False, True)},
    "phi": {"partial_rotary_factor": (0.5, 1.0), "qk_layernorm": (False, True)},
    "phi3": {"rope_theta": (10000.0, 500.0)},
    "gemma": {"hidden_activation": ("gelu_pytorch_tanh", "silu")},
    "gemma2": {
        "final_logit_softcapping": (None, 2.0),
        "attn_logit_softcapping": (None, 3.0),
        "sliding_window": (3, 64),
    },
    "olmo": {"clip_qkv": (None, 0.5)},
    "olmo2": {"attention_bias": (False, True)},
    "starcoder2": {"use_bias": (True, False)},
    "nemotron": {"hidden_act": ("relu2", "gelu")},
    "stablelm": {"use_qkv_bias": (False, True), "use_parallel_residual": (False, True)},
    "cohere": {"logit_scale": (0.0625, 1.0), "use_qk_norm": (False, True)},
    "granite": {
        "embedding_multiplier": (1.0, 3.0),
        "residual_multiplier": (1.0, 0.5),
        "logits_scaling": (1.0, 4.0),
    },
    "falcon": {"alibi": (False, True), "parallel_attn": (True, False)},
    "mixtral": {"num_local_experts": (3, 4), "num_experts_per_tok": (1, 2)},
    "qwen2_moe": {
        "num_experts": (3, 4),
        "num_experts_per_tok": (1, 2),
        "norm_topk_prob": (False, True),
    }
    | {"moe_intermediate_size": (6, 12), "shared_expert_intermediate_size": (8, 20)},
    "qwen3_moe": {
        "num_experts": (3, 4),
        "num_experts_per_tok": (1, 2),
        "moe_intermediate_size": (6, 12),
    },
    "olmoe": {
        "num_experts": (3, 4),
        "num_experts_per_tok": (1, 2),
        "norm_topk_prob": (False, True),
    },
    "gpt_oss": {
        "num_local_experts": (3, 4),
        "num_experts_per_tok": (1, 2),
        "sliding_window": (3, 64),
    },
    "mamba": {"state_size": (3, 4), "use_conv_bias": (True, False)},
}
"""Settings of each family in addition to its sizes, with the values to draw."""


def drawn(number: int) -> dict[str, Any]:
    """Return a small random config.json. Families take turns."""
    dice = random.Random(number)
    name = list(FAMILIES)[number % len(FAMILIES)]
    heads = dice.choice((2, 4))
    head = dice.choice((4, 8))
    groups = dice.choice([count for count in (1, 2, 4) if count <= heads])
    layers = dice.randint(1, 3)
    width = dice.choice((20, 32, 48))
    usual = {"hidden_size": heads * head, "num_hidden_layers": layers, "num_attention_heads": heads}
    usual |= {
        "num_key_value_heads": groups,
        "intermediate_size": width,
        "max_position_embeddings": 64,
    }
    usual |= {"head_dim": head} if name in ("gemma", "gemma2", "qwen3_moe", "gpt_oss") else {}
    own = {
        "n_embd": heads * head,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": width,
        "n_positions": 64,
    }
    sizes = own if name in ("gpt2", "gptj", "bloom") else usual
    sizes |= {"ffn_dim": width, "word_embed_proj_dim": heads * head} if name == "opt" else {}
    if name == "bloom":
        sizes = {"hidden_size": heads * head, "n_layer": layers, "n_head": heads}
    chosen = {key: dice.choice(values) for key, values in FAMILIES[name].items()}
    tied = (
        {}
        if name in ("gemma", "gemma2", "cohere")
        else {"tie_word_embeddings": dice.random() < 0.5}
    )
    return (
        {"model_type": name, "vocab_size": dice.choice((40, 64)), "pad_token_id": None}
        | sizes
        | chosen
        | tied
    )


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.slow if number >= len(FAMILIES) else ())
        for number in range(46)
    ],
)
def test_hf_drawn_models_equal_transformers(number: int, tmp_path: Path) -> None:
    fields = drawn(number)
    torch.manual_seed(number)
    name = fields.pop("model_type")
    their_config = transformers.AutoConfig.for_model(name, **fields)
    theirs = transformers.AutoModelForCausalLM.from_config(their_config).eval()
    if "experts" in " ".join(key for key, _ in theirs.named_parameters()):
        theirs.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    theirs.save_pretrained(tmp_path)
    config = config_of(json.loads((tmp_path / "config.json").read_text()))
    assert config.MODEL_TYPE == "hf_auto"
    ours = config.build(0, load(tmp_path, 0))
    tokens = torch.randint(fields["vocab_size"], (2, 9))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    ours.loss(tokens).backward()
    logits = theirs(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    gradients = dict(ours.named_parameters())
    learns = 0
    for key, parameter in theirs.named_parameters():
        gradient = gradients[key].grad
        assert gradient is not None
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-4, msg=key)
        learns += bool(gradient.any())
    assert learns > len(gradients) // 2
