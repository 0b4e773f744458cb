"""Test that layers split over ranks compute what whole layers do in every tier, and that
unsplittable ones are refused by name.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.base.errors import Unsuitable
from aftermath.model.architectures import config_of
from aftermath.optim.engine import Trained
from aftermath.parallel.group import Ranks
from aftermath.parallel.tensor_parallel import check_tensor_parallelism
from aftermath.replica.replica import Replica
from aftermath.rules.sparseloco import SparseLoCo
from parallel.rank_processes import (
    CUT,
    MODELS,
    PAIR,
    RATE,
    SQUARE,
    close_gradients,
    gradients,
    parameter_counts,
    replica_pair,
    share,
)

# Slow, because shapes that the fast tests do not use need processes of their own.
_PAIR = pytest.param(PAIR, id="pair", marks=pytest.mark.slow)
_SQUARE = pytest.param(SQUARE, id="square", marks=pytest.mark.slow)
on_pair = pytest.mark.parametrize("shape", [_PAIR])
on_both = pytest.mark.parametrize("shape", [_PAIR, _SQUARE])
ESSENTIAL = [("qwen3", 0), ("named deepseek", 1)]


@on_both
@pytest.mark.parametrize(("model", "tier"), ESSENTIAL)
def test_cut_layers_give_equal_gradients_up_to_rounding(
    ranks: Ranks, model: str, tier: int
) -> None:
    close_gradients(ranks, model, tier)


@on_pair
@pytest.mark.parametrize("model", sorted(set(CUT) - {model for model, _ in ESSENTIAL}))
def test_tensor_parallel_gradients_of_other_models_are_close(ranks: Ranks, model: str) -> None:
    close_gradients(ranks, model, 1)


@pytest.mark.slow
@on_pair
@pytest.mark.parametrize("model", ["llama", "whole nanogpt", "deepseek"])
def test_tensor_parallel_recomputed_layers_give_equal_bits(ranks: Ranks, model: str) -> None:
    (loss, expected), (found_loss, other_gradients) = (
        gradients(replica_pair(ranks, model, 0, 2, recompute=recompute)[1], share(5))
        for recompute in (False, True)
    )
    assert found_loss == loss
    assert all(torch.equal(other_gradients[name], gradient) for name, gradient in expected.items())


def drawn(replica: Replica, number: int) -> Trained:
    """Draw a round of gradients, the same for every trainer. Gradients of split layers differ by
    rounding.
    """
    draws = torch.Generator().manual_seed(number)
    tensors = {
        name: torch.randn(tensor.shape, generator=draws) for name, tensor in replica.params.items()
    }

    def backward(part: Tensor) -> float:
        for name, gradient in tensors.items():
            # so that looking ahead has an effect
            replica.params[name].grad = gradient + replica.params[name].detach().abs()
        return float(len(part))

    return replica.optimizer.train(share(4), backward, RATE, RATE, travelling=number > 0)


@on_both
def test_tensor_parallel_ranks_share_optimizer_state(ranks: Ranks) -> None:
    alone, led = replica_pair(ranks, "llama", 1, 1)
    for number in range(2):
        assert drawn(alone, number).payloads == drawn(led, number).payloads
        assert alone.optimizer.tree().root == led.optimizer.tree().root


@on_pair
@pytest.mark.parametrize("inner", ["adamw", "muon"])
def test_cut_layers_take_equal_inner_steps_up_to_rounding(ranks: Ranks, inner: Any) -> None:
    alone, led = replica_pair(
        ranks, "llama", 0, 2, SparseLoCo(inner_steps=2, inner_optimizer=inner, chunk=16, topk=16)
    )
    one, led_result = (
        replica.train(share(4), 1e-4, 1e-4, threading.Event()) for replica in (alone, led)
    )
    assert led_result.loss == pytest.approx(one.loss, rel=1e-5)
    expected, led_state = (replica.optimizer.state() for replica in (alone, led))
    assert led_state.keys() == expected.keys()
    for name in (name for name in expected if name.startswith("private.")):
        torch.testing.assert_close(led_state[name], expected[name], rtol=1e-2, atol=1e-5, msg=name)


@on_both
@pytest.mark.parametrize("model", ["llama", "nanogpt", "deepseek"])
def test_tensor_parallel_rank_holds_its_share_of_matrices(ranks: Ranks, model: str) -> None:
    """Each rank of a pair also holds the whole tables, head, norms, gates, and parameters that
    heads share.
    """
    whole, per_rank = parameter_counts(ranks, model, 0)
    shapes = config_of(MODELS[model]).parameter_shapes(0)
    matrices = [
        name
        for name in shapes
        if name.endswith("proj.weight") and not name.endswith("q_a_proj.weight")
    ]
    cut = sum(torch.Size(shapes[name]).numel() for name in matrices)
    assert per_rank * (ranks.size // ranks.tensor) == whole - cut + cut // ranks.tensor


@pytest.mark.parametrize(
    ("model", "tier", "count", "says"),
    [
        ("deepseek", 0, 4, "does not divide the 2 heads of a layer of tier 0"),
        (
            "narrow deepseek",
            1,
            2,
            "does not divide the 9 hidden units of an expert of a layer of tier 1",
        ),
        ("nanogpt", 1, 8, "does not divide the 4 key/value heads of a layer of tier 1"),
        ("llama", 0, 4, "does not divide the 2 key/value heads of a layer of tier 0"),
        ("qwen3", 2, 3, "does not divide the 2 key/value heads of a layer of tier 2"),
        ("uneven", 1, 2, "does not divide the 31 hidden units of a layer of tier 1"),
        ("uneven", 2, 2, "does not divide the 1 key/value heads of a layer of tier 2"),
    ],
)
def test_indivisible_tensor_parallelism_is_refused(
    model: str, tier: int, count: int, says: str
) -> None:
    with pytest.raises(Unsuitable, match=says):
        check_tensor_parallelism(config_of(MODELS[model]), tier, count)


@pytest.mark.slow  # importing transformers takes seconds
def test_tensor_parallelism_of_transformers_model_is_refused() -> None:
    pytest.importorskip("transformers")
    config = config_of(
        {"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    )
    with pytest.raises(
        Unsuitable, match="of type hf_auto cannot be split: its layers come from transformers"
    ):
        check_tensor_parallelism(config, 0, 2)
