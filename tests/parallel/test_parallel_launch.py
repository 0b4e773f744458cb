"""Test the ranks' processes: an ended rank is named, and none outlives its member."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from aftermath.parallel.group import Ranks
from aftermath.parallel.launch import RankLost, RankProcesses, launch_ranks
from aftermath.parallel.mesh import Mesh
from aftermath.rules.sparseloco import SparseLoCo
from parallel.rank_processes import RATE, ranks_on_cpu, replica_pair, share, train_share

CPU = torch.device("cpu")
MUON = SparseLoCo(inner_steps=3, inner_optimizer="muon", chunk=16, topk=16)


async def _endless() -> None:
    await asyncio.Event().wait()


@pytest.mark.slow
async def test_idle_rank_that_ends_is_named() -> None:
    with launch_ranks(Mesh((CPU, CPU), 2, 1), 1) as processes:
        os.kill(processes.pids[0], signal.SIGKILL)
        message = r"rank 1 of this member, on cpu, ended by SIGKILL.*\n.*Restart the member"
        with pytest.raises(RankLost, match=message):
            await processes.while_all_run(_endless())


@pytest.mark.slow
async def test_rank_that_ends_during_pass_is_named(processes: RankProcesses, ranks: Ranks) -> None:
    """torch raises an error about the broken connection; the member says which rank ended."""
    _, led = replica_pair(ranks, "llama", 0, 1)
    os.kill(processes.pids[0], signal.SIGKILL)

    async def train() -> None:
        # the event loop is blocked until the pass fails
        led._backward(led.passes, share(4), threading.Event())

    with pytest.raises(RankLost, match="rank 1 of this member, on cpu, ended by SIGKILL") as caught:
        await processes.while_all_run(train())
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("a share is trained", marks=pytest.mark.slow),
        pytest.param("a state is kept", marks=pytest.mark.slow),
        pytest.param("a share begins", marks=pytest.mark.nightly),
    ],
)
async def test_killed_rank_with_moments_is_named(
    processes: RankProcesses, ranks: Ranks, when: str
) -> None:
    """Neither the step of its parameters nor the undo of the share waits for it."""
    _, led = replica_pair(ranks, "llama", 0, 1, MUON)
    train_share(led, 0, count=1)
    [follower] = processes.pids
    count = 0

    def backward(part: Tensor) -> float:
        nonlocal count
        count += 1
        loss = led._backward(led.passes, part, threading.Event())
        if count == 2:
            os.kill(follower, signal.SIGKILL)
        return loss

    async def work() -> None:
        if when == "a share is trained":
            led.optimizer.train(share(4), backward, RATE, RATE)
        os.kill(follower, signal.SIGKILL)
        if when == "a share begins":
            train_share(led, 1)
        led.optimizer.state()

    before = led.hashes()
    with pytest.raises(RankLost, match="rank 1 of this member, on cpu, ended by SIGKILL") as caught:
        await processes.while_all_run(work())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert led.hashes() == before


async def test_error_unrelated_to_ranks_is_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aftermath.parallel.launch._END_TIMEOUT", 0.01)

    async def fail() -> None:
        raise RuntimeError("of its own")

    with launch_ranks(Mesh((CPU, CPU), 2, 1), 1) as processes:
        with pytest.raises(RuntimeError, match="of its own"):
            await processes.while_all_run(fail())
        assert await processes.while_all_run(asyncio.sleep(0, "done")) == "done"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is not to be there")
async def test_rank_that_cannot_start_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    message = "rank 1 of this member, on cuda:7, ended with status 1"
    with (
        launch_ranks(Mesh((CPU, torch.device("cuda:7")), 2, 1), 1) as processes,
        pytest.raises(RankLost, match=message),
    ):
        await processes.while_all_run(_endless())
    assert "rank 1 on cuda:7: " in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("no_ranks")  # `capfd` captures only processes that start within the test
async def test_crashed_rank_prints_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with ranks_on_cpu(2) as (processes, _):
        os.kill(processes.pids[0], signal.SIGSEGV)
        with pytest.raises(RankLost, match="rank 1 of this member, on cpu, ended by SIGSEGV"):
            await processes.while_all_run(_endless())
    stderr = capfd.readouterr().err
    assert "Fatal Python error: " in stderr
    assert "aftermath/parallel/worker.py" in stderr


def test_launched_ranks_leave_no_process_or_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with launch_ranks(Mesh((CPU, CPU), 2, 1), 1) as processes:
        [number] = processes.pids
        [meeting] = tmp_path.iterdir()
        assert meeting.stat().st_mode & 0o777 == 0o700
        assert psutil.pid_exists(number)
    assert not psutil.pid_exists(number)
    assert not list(tmp_path.iterdir())
