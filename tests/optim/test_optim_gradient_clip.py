"""Clipping by the global norm."""

from __future__ import annotations

import math

import pytest
import torch

from aftermath.optim.gradient_clip import NonFiniteGradient, clip_gradients, scale


def test_clip_scales_all_tensors_only_above_the_norm() -> None:
    grads = {"a": torch.full((3, 3), 2.0), "b": torch.tensor([8.0])}
    assert clip_gradients(grads, 100.0) == ()
    assert grads["b"].item() == 8.0
    assert clip_gradients(grads, 5.0) == (pytest.approx(0.5),)
    assert grads["b"].item() == pytest.approx(4.0, rel=1e-5)
    assert grads["a"].tolist() == [[pytest.approx(1.0, rel=1e-5)] * 3] * 3


def test_clip_leaves_gradients_at_the_norm_unchanged() -> None:
    grads = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    assert clip_gradients(grads, 5.0) == ()
    assert (grads["a"].item(), grads["b"].item()) == (3.0, 4.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_gradient_is_refused_by_name(value: float) -> None:
    grads = {"a": torch.ones(2), "b": torch.tensor([2.0, value])}
    with pytest.raises(NonFiniteGradient, match="gradient of b is not finite"):
        clip_gradients(grads, 0.1)
    assert grads["a"].tolist() == [1.0, 1.0]
    assert grads["b"][0] == 2.0


@pytest.mark.parametrize("value", [2e19, 4.9e20, -3.4e38])
@pytest.mark.parametrize("count", [1, 1000])
def test_clip_handles_a_norm_beyond_fp32(value: float, count: int) -> None:
    grads = {"a": torch.full((count,), value), "b": torch.tensor([abs(value) / 4])}
    norm = abs(value) * math.sqrt(count + 1 / 16)
    before = {name: tensor.clone() for name, tensor in grads.items()}
    factors = clip_gradients(grads, 1.0)
    assert math.prod(factors) == pytest.approx(1 / norm, rel=1e-5)
    scale(list(before.values()), factors)
    assert all(torch.equal(before[name], tensor) for name, tensor in grads.items()), "bit by bit"
    assert grads["a"][0].item() == pytest.approx(value / norm, rel=1e-5)
    assert grads["b"].item() == pytest.approx(abs(value) / 4 / norm, rel=1e-5)
    tensors = {"a": torch.full((count,), value)}
    clip_gradients(tensors, 1e60)
    assert tensors["a"][0].item() == pytest.approx(value, rel=1e-6)
