"""Tiers of a NanoGPT that keep named layers and heads. Skips connect layers, and tables have
columns per head.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from model.nanogpt_reference import config, restated, tokens, weights

torch.set_num_threads(1)

NAMED: dict[str, list[dict[str, Any]]] = {
    "heads": [{"num_key_value_heads": [4, 3, 2, 1]}, {"num_key_value_heads": [2, 3, 1, 1]}],
    "a first layer less": [{"layers": [1, 2, 3]}, {"layers": [2, 3]}],
    "a last layer less": [{"layers": [0, 1, 3]}, {"layers": [0, 3]}],
    "a half less": [{"layers": [0, 1]}, {"layers": [1]}],
    "all at once": [
        {"layers": [0, 2, 3], "intermediate_size": [40, 30, 20], "num_key_value_heads": [3, 4, 2]},
        {"layers": [0, 3], "num_key_value_heads": 2},
    ],
}


@pytest.mark.parametrize("tiers_name", NAMED)
@pytest.mark.parametrize(
    "option",
    [
        "all",
        pytest.param("value_embeddings", marks=pytest.mark.slow),
        pytest.param("unet_skips", marks=pytest.mark.slow),
    ],
)
def test_nanogpt_named_tier_equals_full_model_without_the_rest(
    option: str, tiers_name: str
) -> None:
    shape = config(option, matformer_tiers=NAMED[tiers_name])
    for tier in (1, 2):
        full = weights(shape)
        tier_shape = shape.shape(tier)
        shapes = shape.parameter_shapes(tier)
        tensors = {
            name: full[name][tuple(map(slice, size))].clone() for name, size in shapes.items()
        }
        for layer in tier_shape.layers:
            width, heads = tier_shape.of_layer(layer)
            full[f"model.layers.{layer}.self_attn.o_proj.weight"][:, heads * shape.head_dim :] = 0
            full[f"model.layers.{layer}.mlp.down_proj.weight"][:, width:] = 0
        net = shape.build(tier, tensors)
        ids = tokens(1, 5)
        own = {name: tensor.requires_grad_(True) for name, tensor in full.items()}
        expected = restated(own, shape, ids[0], tier_shape.layers)
        logits = net(ids)[0]
        torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-5)
        expected.square().sum().backward()
        logits.double().square().sum().backward()
        for name, tensor in net.named_parameters():
            theirs = own[name].grad
            assert tensor.grad is not None
            assert theirs is not None
            assert tensor.grad.any(), f"{name} learns nothing"
            part = theirs[tuple(map(slice, tensor.shape))]
            torch.testing.assert_close(tensor.grad, part, rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("tiers_name", NAMED)
def test_nanogpt_tier_position_ignores_later_tokens(tiers_name: str) -> None:
    shape = config("all", matformer_tiers=NAMED[tiers_name])
    ids = tokens()
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 48
    for tier in (1, 2):
        net = shape.build(tier, weights(shape, tier))
        before = net(ids)
        after = net(changed)
        assert torch.equal(before[:, :6], after[:, :6])
        assert not torch.allclose(before[:, 6], after[:, 6])


def test_nanogpt_tier_holds_embeddings_and_skips_of_its_layers() -> None:
    shape = config("all", value_embeddings=2, matformer_tiers=NAMED["all at once"])
    tables = [
        {
            name: size
            for name, size in shape.parameter_shapes(tier).items()
            if "value_embeds" in name
        }
        for tier in range(3)
    ]
    assert tables[0] == {
        "model.value_embeds.0.weight": (48, 32),
        "model.value_embeds.1.weight": (48, 32),
    }
    assert tables[1] == {
        "model.value_embeds.0.weight": (48, 32),
        "model.value_embeds.1.weight": (48, 16),
    }
    assert tables[2] == {
        "model.value_embeds.0.weight": (48, 16),
        "model.value_embeds.1.weight": (48, 16),
    }
    shape = config("all", matformer_tiers=NAMED["a half less"])
    assert "model.skip_lambdas" in shape.parameter_shapes(0)
    assert "model.skip_lambdas" not in shape.parameter_shapes(1)
    assert "model.value_embeds.0.weight" not in shape.parameter_shapes(2)
