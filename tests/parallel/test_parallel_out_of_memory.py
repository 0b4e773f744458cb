"""A rank whose memory is too small for a pass has all ranks take smaller ones; the system itself
refuses the memory.

The limit is `RLIMIT_AS` of that rank's process, set from outside: no allocator is replaced.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import torch

from aftermath.parallel.collectives import Collectives
from aftermath.parallel.group import Ranks
from aftermath.parallel.launch import Launched
from aftermath.parallel.multi_device_replica import MultiDeviceReplica
from aftermath.replica.pass_size import OutOfMemory
from aftermath.replica.replica import Replica
from aftermath.rules.sparseloco import SparseLoCo
from parallel.rank_processes import FOUR, RATE, TWO, bits, gradients, share, two

pytestmark = pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="limits of other processes are Linux's"
)

MICRO = 2048  # sequences: activations of more than a hundred megabytes in three layers
ROOM = 48 << 20


@contextmanager
def limited(process: int, room: int) -> Iterator[None]:
    """Limit that process to `room` more bytes than it has."""
    before = resource.prlimit(process, resource.RLIMIT_AS)
    resource.prlimit(
        process, resource.RLIMIT_AS, (psutil.Process(process).memory_info().vms + room, before[1])
    )
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_AS, before)


def same(alone: Replica, led: MultiDeviceReplica, count: int) -> None:
    (loss, expected), (found_loss, found) = (
        gradients(replica, share(count)) for replica in (alone, led)
    )
    assert found_loss == loss
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        pytest.param(TWO, "named", marks=pytest.mark.slow),
        pytest.param(TWO, "deepseek", marks=pytest.mark.nightly),
        pytest.param(FOUR, "named", marks=pytest.mark.nightly),
    ],
)
def test_out_of_memory_halves_all_passes_and_keeps_bits(
    processes: Launched, ranks: Ranks, model: str
) -> None:
    alone, led = two(ranks, model, 0, MICRO)
    # as when a machine is measured: what a pass's collectives are is known then
    gradients(led, share(1))
    with limited(processes.processes[-1], ROOM):
        gradients(led, share(MICRO * ranks.size + 3))
        size = led._pass_size.size
        assert 1 <= size < MICRO
        assert {news.partition(":")[0] for news in led.news()} == {"out of memory"}
        same(alone, led, size * ranks.size + 3)  # `alone` has the same sizes
    results = [
        replica.train(share(3 * size), RATE, RATE, threading.Event()) for replica in (alone, led)
    ]
    assert results[0].payloads == results[1].payloads
    assert led._pass_size.size == size, "it stays so"


@pytest.mark.slow
def test_inner_step_uses_only_completed_passes(processes: Launched, ranks: Ranks) -> None:
    """Ranks keep weights and gradients for it, which come again when the share begins again."""
    alone, led = two(ranks, "named", 0, MICRO, SparseLoCo(inner_steps=1, chunk=16, topk=16))
    gradients(led, share(1))
    with limited(processes.processes[-1], ROOM):
        found = led.train(share(MICRO * ranks.size + 3), RATE, RATE, threading.Event())
    assert led._pass_size.size < MICRO
    # it has the same sizes
    expected = alone.train(share(MICRO * ranks.size + 3), RATE, RATE, threading.Event())
    assert found.payloads == expected.payloads
    assert bits(led.optimizer.state()) == bits(alone.optimizer.state())


@pytest.mark.slow
def test_sequence_beyond_memory_is_refused_and_ranks_continue(
    processes: Launched, ranks: Ranks
) -> None:
    """The gradients are cleared, and the next share is trained as before."""
    alone, led = two(ranks, "named", 0, MICRO)
    gradients(led, share(1))
    led._pass_size.shrink = lambda: False  # type: ignore[method-assign]  # as with one sequence and layers computed twice
    with (
        limited(processes.processes[0], ROOM),
        pytest.raises(OutOfMemory, match=r"one of this member's devices.*\n.*--matformer-tier"),
    ):
        gradients(led, share(MICRO * ranks.size))
    assert all(parameter.grad is None for parameter in led.params.values())
    same(alone, led, 5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3", "whole nanogpt", "narrow deepseek"])
def test_pass_collectives_do_not_depend_on_pass_size(
    ranks: Ranks, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So who knows one pass knows what is left of another."""
    found: list[Any] = []
    plain = Collectives.end

    def end(collectives: Collectives) -> None:
        found.append(list(collectives._now))
        plain(collectives)

    monkeypatch.setattr(Collectives, "end", end)
    _, led = two(ranks, model, 1, 2)
    gradients(led, share(1))
    gradients(led, share(9))
    rows = torch.stack([share(5), share(5).masked_fill(share(5, 1) < 30, -100)], 1)
    gradients(led, rows)
    monkeypatch.setattr("aftermath.model.network.LOGITS_AT_ONCE", 64 * 7)
    gradients(led, share(4))
    if led.model.can_recompute:
        led._pass_size.recompute = True
        gradients(led, share(4))
    assert len(found) > 5
    assert found[0]
    assert all(collectives == found[0] for collectives in found)


def test_diverged_pass_cannot_finish() -> None:
    collectives = Collectives()
    assert not collectives.can_finish, "none is known"
    collectives._record(True, torch.empty(4), torch.empty(2), None)
    collectives.end()
    collectives.begin()
    assert collectives.can_finish
    collectives._record(False, torch.empty(4), torch.empty(2), None)
    assert not collectives.can_finish
