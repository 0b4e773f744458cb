"""Layers that are cut over ranks compute what whole layers do, in every tier; what cannot be cut is refused by name."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.base.errors import Unsuitable
from aftermath.model.architectures import config_of
from aftermath.optim.engine import Trained
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.ranks.group import Ranks
from aftermath.ranks.tensor import check_tensor_parallelism
from aftermath.replica.replica import Replica
from ranks.rank_processes import MODELS, RATE, gradients, parts, share, two


@pytest.fixture(scope="module", params=[(1, 2), pytest.param((2, 2), marks=pytest.mark.slow)], ids=["two", "square"])
def shape(request: pytest.FixtureRequest) -> tuple[int, int]:
    data, tensor = request.param
    return data, tensor


@pytest.mark.parametrize(
    "model",
    [
        "llama",
        "qwen2",
        "qwen3",
        "named",
        "nanogpt",
        "whole nanogpt",
        "named nanogpt",
        "deepseek",
        "deepseek v2",
        "named deepseek",
    ],
)
@pytest.mark.parametrize("tier", range(3))
def test_layers_that_are_cut_give_the_same_gradient_but_for_rounding(ranks: Ranks, model: str, tier: int) -> None:
    alone, led = two(ranks, model, tier, 2)
    (loss, expected), (found_loss, found) = (gradients(replica, share(7)) for replica in (alone, led))
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
        if name.endswith("e_score_correction_bias"):  # how often experts were chosen, every token once
            assert torch.equal(found[name], gradient)
            assert int(gradient.sum()) == 2 * 7 * 15
        assert bool(found[name].any()) or name.endswith("bias")


@pytest.mark.parametrize("model", ["llama", "whole nanogpt", "deepseek"])
def test_layers_that_are_computed_twice_give_the_same_bits(ranks: Ranks, model: str) -> None:
    (loss, expected), (found_loss, found) = (
        gradients(two(ranks, model, 0, 2, recompute=recompute)[1], share(5)) for recompute in (False, True)
    )
    assert found_loss == loss
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def drawn(replica: Replica, number: int) -> Trained:
    """A round of gradients that are the same for whoever trains: what layers that are cut make differs by rounding."""
    draws = torch.Generator().manual_seed(number)
    given = {name: torch.randn(tensor.shape, generator=draws) for name, tensor in replica.params.items()}

    def backward(part: Tensor) -> float:
        for name, gradient in given.items():
            replica.params[name].grad = gradient + replica.params[name].detach().abs()  # so that looking ahead counts
        return float(len(part))

    return replica.optimizer.train(share(4), backward, RATE, RATE, travelling=number > 0)


def test_ranks_of_one_layer_share_the_optimizers_state_too(ranks: Ranks) -> None:
    alone, led = two(ranks, "llama", 1, 1)
    for number in range(2):
        assert drawn(alone, number).payloads == drawn(led, number).payloads
        assert alone.optimizer.tree().root == led.optimizer.tree().root


@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_ranks_of_one_layer_step_what_is_theirs_by_the_same_gradient_but_for_rounding(ranks: Ranks, inner: Any) -> None:
    alone, led = two(ranks, "llama", 0, 2, SparseLoCo(inner_steps=2, inner_optimizer=inner, chunk=16, topk=16))
    one, made = (replica.train(share(4), 1e-4, 1e-4, threading.Event()) for replica in (alone, led))
    assert made.loss == pytest.approx(one.loss, rel=1e-5)
    expected, found = (replica.optimizer.state() for replica in (alone, led))
    assert found.keys() == expected.keys()
    for name in (name for name in expected if name.startswith("private.")):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-2, atol=1e-5, msg=name)


@pytest.mark.parametrize("model", ["llama", "nanogpt", "deepseek"])
def test_a_rank_holds_its_part_of_the_matrices(ranks: Ranks, model: str) -> None:
    """And every rank of a pair tables, head, norms, gates, and what heads share."""
    whole, held = parts(ranks, model, 0)
    shapes = config_of(MODELS[model]).parameter_shapes(0)
    matrices = [name for name in shapes if name.endswith("proj.weight") and not name.endswith("q_a_proj.weight")]
    cut = sum(torch.Size(shapes[name]).numel() for name in matrices)
    assert held * (ranks.size // ranks.tensor) == whole - cut + cut // ranks.tensor


@pytest.mark.parametrize(
    ("model", "tier", "count", "says"),
    [
        ("deepseek", 0, 4, "does not divide the 2 heads of a layer of tier 0"),
        ("narrow deepseek", 1, 2, "does not divide the 9 hidden units of an expert of a layer of tier 1"),
        ("nanogpt", 1, 8, "does not divide the 4 key/value heads of a layer of tier 1"),
        ("llama", 0, 4, "does not divide the 2 key/value heads of a layer of tier 0"),
        ("qwen3", 2, 3, "does not divide the 2 key/value heads of a layer of tier 2"),
        ("uneven", 1, 2, "does not divide the 31 hidden units of a layer of tier 1"),
        ("uneven", 2, 2, "does not divide the 1 key/value heads of a layer of tier 2"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(model: str, tier: int, count: int, says: str) -> None:
    with pytest.raises(Unsuitable, match=says):
        check_tensor_parallelism(config_of(MODELS[model]), tier, count)


def test_a_model_of_transformers_is_refused_with_the_reason() -> None:
    pytest.importorskip("transformers")
    config = config_of({"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2})
    with pytest.raises(Unsuitable, match="of type hf_auto cannot be cut: its layers are transformers' own"):
        check_tensor_parallelism(config, 0, 2)
