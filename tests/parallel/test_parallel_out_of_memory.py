"""Test that a member whose rank runs out of memory ends with an error that names the rank and the
fix.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import torch
from torch import Tensor

from aftermath.parallel import sharded
from aftermath.parallel.group import Ranks
from aftermath.parallel.launch import RankProcesses
from aftermath.replica.pass_size import AUTO, OutOfMemory
from aftermath.replica.passes import Passes
from parallel.rank_processes import (
    FOUR,
    PAIR,
    RATE,
    TWO,
    gradients,
    inner_settings,
    ranks_on_cpu,
    replica_pair,
    share,
    train_share,
)

MICRO = 2048  # sequences: activations of more than a hundred megabytes in three layers
ROOM = 48 << 20  # bytes
FIX = r"--micro-batch-size .*--activation-checkpointing on, .*--matformer-tier"

pytestmark = pytest.mark.usefixtures("no_ranks")


@contextmanager
def ending_ranks(shape: tuple[int, int] = TWO) -> Iterator[tuple[RankProcesses, Ranks]]:
    """Yield ranks for this test only. At the end check that none of their processes is left."""
    with ranks_on_cpu(*shape) as (processes, ranks):
        pids = processes.pids
        yield processes, ranks
    assert not any(map(psutil.pid_exists, pids))


def limit_memory(process: int, room: int) -> None:
    """Limit a process to `room` more bytes of address space than it has."""
    _, most = resource.prlimit(process, resource.RLIMIT_AS)
    used = psutil.Process(process).memory_info().vms
    resource.prlimit(process, resource.RLIMIT_AS, (used + room, most))


def fail_pass(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first rank's allocator fail in a pass, counted from 1."""
    plain = sharded.share_loss
    count = 0

    def loss(passes: Passes, batch: Tensor, micro: Tensor, sequences: Tensor) -> Tensor:
        nonlocal count
        count += 1
        if count == number:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(passes, batch, micro, sequences)

    monkeypatch.setattr(sharded, "share_loss", loss)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits other processes")
@pytest.mark.parametrize(
    ("shape", "trained"),
    [
        pytest.param(TWO, 0, marks=pytest.mark.slow),
        pytest.param(TWO, 1, marks=pytest.mark.slow),
        pytest.param(PAIR, 0, marks=pytest.mark.nightly),
        pytest.param(FOUR, 1, marks=pytest.mark.nightly),
    ],
)
async def test_out_of_memory_on_last_rank_ends_member(
    shape: tuple[int, int], trained: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """The system refuses the memory, in the first share or after `trained` shares."""
    with ending_ranks(shape) as (processes, ranks):
        _, led = replica_pair(ranks, "named", 0, MICRO, inner_settings("adamw"))
        for number in range(trained):
            train_share(led, number)
        limit_memory(processes.pids[-1], ROOM)

        async def train() -> None:
            led.train(share(3 * MICRO * ranks.size), RATE, RATE, threading.Event())

        before = led.hashes()
        message = f"rank {ranks.size - 1} of this member, on cpu, has too little memory.*\\n.*{FIX}"
        with pytest.raises(OutOfMemory, match=message):
            await processes.while_all_run(train())
        assert led.hashes() == before
    assert f"rank {ranks.size - 1} on cpu: out of memory: " in capfd.readouterr().err


@pytest.mark.slow
async def test_out_of_memory_on_first_rank_ends_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank waits inside a layer until it is killed."""
    with ending_ranks() as (processes, ranks):
        _, led = replica_pair(ranks, "llama", 0, 1, inner_settings("adamw"))
        train_share(led, 0)
        fail_pass(2, monkeypatch)

        async def train() -> None:
            train_share(led, 1)

        before = led.hashes()
        message = f"rank 0 of this member, on cpu, has too little memory.*\\n.*{FIX}"
        with pytest.raises(OutOfMemory, match=message) as caught:
            await processes.while_all_run(train())
        assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
        assert led.hashes() == before


@pytest.mark.slow
def test_out_of_memory_while_measuring_ends_member(monkeypatch: pytest.MonkeyPatch) -> None:
    with ending_ranks() as (_, ranks):
        _, led = replica_pair(ranks, "llama", 0, AUTO)
        fail_pass(1, monkeypatch)
        with pytest.raises(OutOfMemory, match="rank 0 of this member"):
            led.measure_weight(16, 0.0)
        assert not led.news()


@pytest.mark.slow
def test_ranks_after_out_of_memory_refuse_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that continues without a copy of the state must not wait for the other rank."""
    with ending_ranks() as (_, ranks):
        _, led = replica_pair(ranks, "llama", 0, 1)
        train_share(led, 0)

        def fail(rank: int) -> dict[str, Tensor]:
            raise MemoryError

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(ranks, "receive", fail)
            with pytest.raises(OutOfMemory):
                led.optimizer.state()
        with pytest.raises(OutOfMemory):
            gradients(led, share(1))
