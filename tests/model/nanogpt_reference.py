"""NanoGPTs with every option, and a second implementation of their function."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from aftermath.model.arch.nanogpt_config import NanoGPTConfig
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights

HF: dict[str, Any] = {
    "model_type": "nanogpt",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
}
PLAIN = {"relu_squared": False, "qk_norm": False, "logit_softcap": 0.0}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "relu_squared": {"relu_squared": True},
    "qk_norm": {"qk_norm": True},
    "logit_softcap": {"logit_softcap": 3.0},
    "value_embeddings": {"value_embeddings": 2},
    "x0_residual": {"x0_residual": True},
    "unet_skips": {"unet_skips": True},
    "all": {
        "relu_squared": True,
        "qk_norm": True,
        "logit_softcap": 15.0,
        "value_embeddings": 1,
        "x0_residual": True,
        "unet_skips": True,
    },
}


def config(option: str = "all", **changes: Any) -> NanoGPTConfig:
    model_config = config_of(HF | PLAIN | OPTIONS[option] | changes)
    assert isinstance(model_config, NanoGPTConfig)
    return model_config


def weights(shape: NanoGPTConfig, tier: int = 0) -> dict[str, Tensor]:
    """Return initial weights with other lambdas. Initial lambdas would hide what they multiply."""
    params = init_weights(shape, 7, tier)
    generator = torch.Generator().manual_seed(3)
    for name in sorted(params):
        if "lambda" in name:
            params[name] = torch.rand(params[name].shape, generator=generator) + 0.5
    return params


def tokens(batch: int = 3, length: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(0, 48, (batch, length), generator=torch.Generator().manual_seed(seed))


def restated(
    p: dict[str, Tensor], c: NanoGPTConfig, ids: Tensor, kept_layers: tuple[int, ...] | None = None
) -> Tensor:
    """Compute the logits of one sequence [T] in float64, head by head and token by token. Use only
    the kept layers.
    """
    p = {name: tensor.double() for name, tensor in p.items()}
    dim = c.head_dim
    heads = c.num_attention_heads
    layers = c.num_hidden_layers
    length = len(ids)

    def norm(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt()

    def turned(x: Tensor, place: int) -> Tensor:
        pairs = torch.complex(x[: dim // 2], x[dim // 2 :])
        angles = torch.tensor(
            [place / c.rope_theta ** (2 * i / dim) for i in range(dim // 2)], dtype=torch.float64
        )
        pairs = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((pairs.real, pairs.imag))

    x = x0 = norm(p["model.embed_tokens.weight"][ids])
    ended: dict[int, Tensor] = {}
    for layer in range(layers):
        own = {
            name.removeprefix(f"model.layers.{layer}."): t
            for name, t in p.items()
            if f".layers.{layer}." in name
        }
        mirror = layers - 1 - layer
        if kept_layers is not None and layer not in kept_layers:
            ended[layer] = x
            continue
        if c.unet_skips and layer >= layers - layers // 2:
            x = x + p["model.skip_lambdas"][layer - (layers - layers // 2)] * ended[mirror]
        if c.x0_residual:
            x = own["residual_lambda"] * x + own["x0_lambda"] * x0
        q, k, v = (norm(x) @ own[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        first = range(c.value_embeddings)
        last = range(layers - c.value_embeddings, layers)
        number = {**dict(zip(first, first, strict=True)), **dict(zip(last, first, strict=True))}
        if layer in number:
            v = (
                v
                + own["self_attn.value_lambda"]
                * p[f"model.value_embeds.{number[layer]}.weight"][ids]
            )
        rows = []
        for place in range(length):
            mixed = []
            for head in range(heads):
                part = slice(head * dim, (head + 1) * dim)
                now = q[place, part]
                before = k[: place + 1, part]
                if c.qk_norm:
                    now, before = norm(now), norm(before)
                scores = torch.stack(
                    [
                        turned(now, place) @ turned(one, index) / math.sqrt(dim)
                        for index, one in enumerate(before)
                    ]
                )
                mixed.append(torch.softmax(scores, 0) @ v[: place + 1, part])
            rows.append(torch.cat(mixed))
        x = x + torch.stack(rows) @ own["self_attn.o_proj.weight"].T
        up = norm(x) @ own["mlp.up_proj.weight"].T
        if c.relu_squared:
            up = up.clamp_min(0) ** 2
        else:
            gate = norm(x) @ own["mlp.gate_proj.weight"].T
            up = gate * torch.sigmoid(gate) * up
        x = x + up @ own["mlp.down_proj.weight"].T
        ended[layer] = x
    logits = (
        norm(x) @ p["model.embed_tokens.weight" if c.tie_word_embeddings else "lm_head.weight"].T
    )
    return c.logit_softcap * torch.tanh(logits / c.logit_softcap) if c.logit_softcap else logits
