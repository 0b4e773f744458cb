"""Test that ranks that split the micro-batches give the bits of one rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aftermath.parallel.group import Ranks
from aftermath.replica.replica import Cancelled
from parallel.rank_processes import (
    MODELS,
    RATE,
    gradients,
    parameter_counts,
    replica_pair,
    same_gradients,
    share,
)

ESSENTIAL = [("uneven", 2), ("whole nanogpt", 2)]
"""Sizes that are not multiples of the number of ranks, and a network with tables and scalars of its
own.
"""
OTHERS = sorted(MODELS.keys() - {model for model, _ in ESSENTIAL})


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tier"), ESSENTIAL)
def test_sharded_gradient_and_loss_equal_one_rank(ranks: Ranks, model: str, tier: int) -> None:
    same_gradients(ranks, model, tier)


@pytest.mark.slow
@pytest.mark.parametrize("model", OTHERS)
def test_sharded_gradients_of_other_models_equal_one_rank(ranks: Ranks, model: str) -> None:
    same_gradients(ranks, model, 2)


@pytest.mark.slow
def test_sharded_loss_with_masked_labels_equals_one_rank(ranks: Ranks) -> None:
    alone, led = replica_pair(ranks, "llama", 0, 1)
    rows = torch.stack([share(5), share(5).masked_fill(share(5, 1) < 30, -100)], 1)  # [5, 2, 16]
    (loss, expected), (found_loss, led_gradients) = (
        gradients(replica, rows) for replica in (alone, led)
    )
    assert found_loss == loss
    assert all(torch.equal(led_gradients[name], gradient) for name, gradient in expected.items())


@pytest.mark.slow
def test_sharded_share_reads_losses_once(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are read once for each share, for any number of micro-batches."""
    _, led = replica_pair(ranks, "llama", 0, 1)
    read: list[str] = []
    for name in ("item", "tolist", "__float__", "__bool__"):
        plain = getattr(torch.Tensor, name)

        def noted(
            tensor: torch.Tensor, name: str = name, plain: Callable[[torch.Tensor], Any] = plain
        ) -> Any:
            read.append(name)
            return plain(tensor)

        monkeypatch.setattr(torch.Tensor, name, noted)
    counts = []
    for count in (2, 7):
        gradients(led, share(count))
        counts.append(len(read))
        read.clear()
    assert counts[0] == counts[1] > 0


@pytest.mark.slow
def test_abandoned_share_leaves_no_state(ranks: Ranks) -> None:
    alone, led = replica_pair(ranks, "llama", 0, 1)
    late = threading.Event()
    late.set()
    with pytest.raises(Cancelled):
        led.train(share(6, 1), RATE, RATE, late)
    results = [replica.train(share(6), RATE, RATE, threading.Event()) for replica in (alone, led)]
    assert results[0].payloads == results[1].payloads


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "skipping nanogpt", "whole nanogpt", "deepseek"])
def test_recomputed_layers_give_equal_bits(ranks: Ranks, model: str) -> None:
    alone, led = replica_pair(ranks, model, 0, 2, recompute=True)
    (loss, expected), (found_loss, led_gradients) = (
        gradients(replica, share(5)) for replica in (alone, led)
    )
    assert found_loss == loss
    assert all(torch.equal(led_gradients[name], gradient) for name, gradient in expected.items())


@pytest.mark.slow
def test_chunked_logits_give_equal_bits(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients are computed in the backward pass, which needs the head again."""
    whole, _ = replica_pair(ranks, "llama", 0, 2)
    _, expected = gradients(whole, share(3))
    # only in this rank; the other computes all logits at once
    monkeypatch.setattr("aftermath.model.network.LOGITS_AT_ONCE", 64 * 7)
    _, led = replica_pair(ranks, "llama", 0, 2)
    _, led_gradients = gradients(led, share(3))
    for name, gradient in expected.items():
        torch.testing.assert_close(led_gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_rank_holds_only_its_share_of_parameters(ranks: Ranks) -> None:
    whole, per_rank = parameter_counts(ranks, "llama", 0)
    assert per_rank == whole // ranks.size  # all sizes are multiples of this


@pytest.mark.slow
def test_measured_weight_uses_all_ranks(ranks: Ranks) -> None:
    _, led = replica_pair(ranks, "llama", 0, 2)
    assert led.at_once == 2 * ranks.size
    assert led.measure_weight(16, 0.0) >= 1
    assert all(parameter.grad is None for parameter in led.params.values())
