"""Test that the rank with the least memory sets the sequences per pass at the start."""

from __future__ import annotations

import pytest
import torch

from aftermath.parallel.group import Ranks
from aftermath.replica.pass_size import AUTO, MOST
from aftermath.replica.replica import Replica
from parallel.rank_processes import PAIR, TWO, gradients, replica_pair, share


def same(ranks: Ranks, alone: Replica, led: Replica) -> None:
    (loss, expected), (found_loss, led_gradients) = (
        gradients(replica, share(7)) for replica in (alone, led)
    )
    exact = {"rtol": 0.0, "atol": 0.0} if ranks.tensor == 1 else {"rtol": 1e-4, "atol": 1e-6}
    assert found_loss == pytest.approx(loss, rel=exact["rtol"] or 1e-15)
    for name, gradient in expected.items():
        torch.testing.assert_close(led_gradients[name], gradient, **exact, msg=name)


@pytest.mark.slow
def test_passes_with_free_memory_reach_largest_size(ranks: Ranks) -> None:
    alone, led = replica_pair(ranks, "llama", 0, AUTO)
    led.measure_weight(16, 0.0)
    assert led.at_once == MOST * ranks.size // ranks.tensor
    assert [news.partition(",")[0] for news in led.news()] == [f"using passes of {MOST} sequences"]
    same(ranks, alone, led)


@pytest.mark.parametrize(
    ("shape", "room", "sizes", "recompute"),
    [
        pytest.param(TWO, 5 << 20, {4, 8}, False, marks=pytest.mark.slow),
        pytest.param(TWO, 0, {1}, True, marks=pytest.mark.slow),
        pytest.param(PAIR, 0, {1}, True, marks=pytest.mark.nightly),
    ],
)
def test_pass_size_follows_rank_with_least_memory(
    ranks: Ranks, room: int, sizes: set[int], recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks have gigabytes, but use the same size. Otherwise they would split the next
    share differently.
    """
    alone, led = replica_pair(ranks, "llama", 0, AUTO)
    led._pass_size = alone._pass_size  # the result holds for both
    monkeypatch.setattr("aftermath.parallel.sharded.free_bytes", lambda device: room * ranks.size)
    led.measure_weight(16, 0.0)
    assert led._pass_size.size in sizes
    assert led._pass_size.recompute == recompute
    same(ranks, alone, led)


@pytest.mark.slow
def test_recompute_when_forbidden_stays_off(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, led = replica_pair(ranks, "llama", 0, AUTO)
    monkeypatch.setattr("aftermath.parallel.sharded.free_bytes", lambda device: 0)
    led._pass_size._may_recompute = False
    led.measure_weight(16, 0.0)
    assert (led._pass_size.size, led._pass_size.recompute) == (1, False)
    same(ranks, alone, led)
