"""Clipping by the global norm."""

from __future__ import annotations

import math

import pytest
import torch

from aftermath.optim.clip import clip_gradients


def test_scales_all_tensors_together_only_when_above() -> None:
    grads = {"a": torch.full((3, 3), 2.0), "b": torch.tensor([8.0])}
    assert clip_gradients(grads, 100.0) == pytest.approx(10.0)
    assert grads["b"].item() == 8.0
    assert clip_gradients(grads, 5.0) == pytest.approx(10.0)
    assert grads["b"].item() == pytest.approx(4.0, rel=1e-5)
    assert grads["a"].tolist() == [[pytest.approx(1.0, rel=1e-5)] * 3] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_changes_nothing(value: float) -> None:
    grads = {"a": torch.ones(2), "b": torch.tensor([value])}
    assert not math.isfinite(clip_gradients(grads, 0.1))
    assert grads["a"].tolist() == [1.0, 1.0]
