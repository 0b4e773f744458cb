"""The ranks' processes: one that ends is named, however it ends and whatever goes on; none outlives its member."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from aftermath.optim.sparseloco import SparseLoCo
from aftermath.ranks.launch import RankLost, launched
from aftermath.ranks.mesh import Mesh
from ranks.rank_processes import RATE, Standing, learnt, ranks_on_cpu, share, two

CPU = torch.device("cpu")
MUON = SparseLoCo(inner_steps=3, inner_optimizer="muon", chunk=16, topk=16)


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_rank_that_ends_while_nothing_is_done_is_named() -> None:
    with ranks_on_cpu(2) as (processes, _):
        os.kill(processes.processes[0], signal.SIGKILL)
        with pytest.raises(
            RankLost, match=r"rank 1 of this member, on cpu, has ended by SIGKILL.*\n.*Start the member"
        ):
            await processes.while_all_run(_for_ever())


async def test_a_rank_that_ends_while_a_share_is_trained_is_named() -> None:
    """The broken connection is an error of torch's; whose it was is found out."""
    with ranks_on_cpu(2) as (processes, ranks):
        _, led = two(ranks, "llama", 0, 1)
        os.kill(processes.processes[0], signal.SIGKILL)

        async def train() -> None:
            led._backward(
                led.passes, share(4), threading.Event()
            )  # in place: the event loop sees nothing before it fails

        with pytest.raises(RankLost, match="rank 1 of this member, on cpu, has ended by SIGKILL") as caught:
            await processes.while_all_run(train())
        assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_rank_that_ends_is_named_by_whoever_asks_for_its_part_of_the_optimizers_state() -> None:
    with ranks_on_cpu(2) as (processes, ranks):
        _, led = two(ranks, "llama", 0, 1)
        led.train(share(2), RATE, RATE, threading.Event())
        os.kill(processes.processes[0], signal.SIGKILL)

        async def hash_state() -> None:
            led.optimizer.tree()

        with pytest.raises(RankLost, match="rank 1 of this member, on cpu, has ended by SIGKILL") as caught:
            await processes.while_all_run(hash_state())
        assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("when", ["a share is trained", "a share begins", "a state is kept"])
async def test_a_rank_that_holds_moments_and_is_killed_is_named(when: str) -> None:
    """Nobody waits for it: neither who steps its parameters, nor who undoes the share."""
    with ranks_on_cpu(2) as (processes, ranks):
        _, led = two(ranks, "llama", 0, 1, MUON)
        learnt(led, 0)
        [follower] = processes.processes
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
                learnt(led, 1)
            led.optimizer.state()

        before = led.hashes()
        with pytest.raises(RankLost, match="rank 1 of this member, on cpu, has ended by SIGKILL") as caught:
            await processes.while_all_run(work())
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert led.hashes() == before


async def test_an_error_that_has_nothing_to_do_with_the_ranks_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.ranks.launch._BLAME", 0.1)

    async def fail() -> None:
        raise RuntimeError("of its own")

    with ranks_on_cpu(2) as (processes, _):
        with pytest.raises(RuntimeError, match="of its own"):
            await processes.while_all_run(fail())
        assert await processes.while_all_run(asyncio.sleep(0, "done")) == "done"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is not to be there")
async def test_a_rank_that_cannot_begin_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    said = "rank 1 of this member, on cuda:7, has ended with status 1"
    with launched(Mesh((CPU, torch.device("cuda:7")), 2, 1), 1) as processes, pytest.raises(RankLost, match=said):
        await processes.while_all_run(_for_ever())
    assert "rank 1 on cuda:7: " in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
async def test_a_rank_that_crashes_says_where_it_was(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    with ranks_on_cpu(2) as (processes, _):
        os.kill(processes.processes[0], number)
        with pytest.raises(RankLost, match=f"rank 1 of this member, on cpu, has ended by {number.name}"):
            await processes.while_all_run(_for_ever())
    said = capfd.readouterr().err
    assert "Fatal Python error: " in said
    assert "aftermath/ranks/follow.py" in said


def test_no_process_and_no_file_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ranks_on_cpu(2) as (processes, _):
        [number] = processes.processes
        [meeting] = tmp_path.iterdir()
        assert meeting.stat().st_mode & 0o777 == 0o700
        assert psutil.pid_exists(number)
    assert not psutil.pid_exists(number)
    assert not list(tmp_path.iterdir())


def test_ranks_of_which_one_has_ended_are_not_the_next_tests() -> None:
    with ExitStack() as until:
        standing = Standing(2, 1, until)
        before = standing.ranks()
        assert standing.ranks() is before
        [rank] = standing.processes.processes
        os.kill(rank, signal.SIGKILL)
        psutil.Process(rank).wait()
        alone, led = two(standing.ranks(), "llama", 0, 1)
        results = [replica.train(share(2), RATE, RATE, threading.Event()) for replica in (alone, led)]
    assert results[0].payloads == results[1].payloads
