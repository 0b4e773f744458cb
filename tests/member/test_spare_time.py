"""Test that work on a thread runs in spare time only, and that a cancelled thread ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aftermath.base.concurrency import ThreadWorker
from aftermath.member.rounds.spare_time import SpareTime
from aftermath.replica.replica import Cancelled

LIMIT = 30.0  # seconds until a test fails


class Work:
    """Work of some steps, each of which waits for the test."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.next_step = threading.Semaphore(0)
        self.steps = 0
        self.starts = 0

    def __call__(self, cancelled: threading.Event) -> int:
        self.starts += 1
        for _ in range(3):
            self.began.release()
            assert self.next_step.acquire(timeout=LIMIT)
            if cancelled.is_set():
                raise Cancelled
            self.steps += 1
        return self.steps

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.began.acquire, timeout=LIMIT)


async def test_work_waits_for_spare_time() -> None:
    spare = SpareTime(ThreadWorker("test"), pauses=True)
    task = asyncio.ensure_future(spare.run(lambda _: 5))
    await asyncio.sleep(0)
    assert not task.done()
    spare.begin()
    assert await asyncio.wait_for(task, LIMIT) == 5


async def test_work_on_a_cpu_pauses_and_continues() -> None:
    spare = SpareTime(ThreadWorker("test"), pauses=True)
    work = Work()
    task = asyncio.ensure_future(spare.run(work))
    spare.begin()
    await work.has_begun()
    spare.end()
    work.next_step.release(3)
    await asyncio.to_thread(work.began.acquire, timeout=0.2)
    assert work.steps == 0
    spare.begin()
    assert await asyncio.wait_for(task, LIMIT) == 3
    assert work.starts == 1


async def test_work_on_a_gpu_begins_again() -> None:
    spare = SpareTime(ThreadWorker("test"), pauses=False)
    work = Work()
    task = asyncio.ensure_future(spare.run(work))
    spare.begin()
    await work.has_begun()
    work.next_step.release()
    await work.has_begun()
    spare.end()
    spare.begin()
    work.next_step.release(4)
    await asyncio.wait_for(task, LIMIT)
    assert work.starts == 2


async def test_cancelled_work_ends_while_paused() -> None:
    worker = ThreadWorker("test")
    spare = SpareTime(worker, pauses=True)
    work = Work()
    task = asyncio.ensure_future(spare.run(work))
    spare.begin()
    await work.has_begun()
    spare.end()
    work.next_step.release(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(worker(lambda: True), LIMIT)
    assert work.steps == 0
