"""Test signals to a session: the first ends the work, the second does nothing, the third ends the
process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from aftermath.train import interrupts
from aftermath.train.interrupts import Interrupts

FOREVER = 3600.0


class Session:
    """Works until cancelled, then takes `seconds` to leave."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.signal_count = 0
        self.answers: list[float | None] = []
        """What the first signals are answered with, if not that the session may leave."""
        self.interrupts = Interrupts(self.tell)
        self.working = asyncio.Event()
        self.leaving = asyncio.Event()
        self.allowed = 0.0
        self.left = False

    def tell(self, number: signal.Signals) -> float | None:
        self.signal_count += 1
        return self.answers.pop(0) if self.answers else 0.0

    async def live(self) -> None:
        self.working.set()
        try:
            await asyncio.sleep(FOREVER)
        finally:
            self.allowed = self.interrupts.leaving()
            self.leaving.set()
            await asyncio.sleep(self.seconds)
            self.left = True

    async def interrupted(self, *signals: signal.Signals) -> None:
        """Run a session that gets the first signal at work and the others while it leaves."""
        running = asyncio.create_task(self.interrupts.run(self.live()))
        await self.working.wait()
        for number in signals:
            os.kill(os.getpid(), number)
            await self.leaving.wait()
            await asyncio.sleep(0.05)
        await running


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT] * 2, [signal.SIGHUP] * 2],
)
async def test_leave_is_not_cut_short_by_second_signal(signals: list[signal.Signals]) -> None:
    session = Session(0.3)
    await asyncio.wait_for(session.interrupted(*signals), 10)
    assert session.left
    assert session.signal_count == 1, "at the first signal, and only then"
    assert 0 < session.allowed <= interrupts.EXIT_SECONDS - interrupts.CLOSE_SECONDS


async def test_third_signal_ends_at_once() -> None:
    session = Session(FOREVER)
    await asyncio.wait_for(session.interrupted(*[signal.SIGINT] * 3), 10)
    assert not session.left


async def test_hanging_leave_is_abandoned_after_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "EXIT_SECONDS", 0.5)
    session = Session(FOREVER)
    started = time.monotonic()
    await asyncio.wait_for(session.interrupted(signal.SIGINT), 10)
    assert time.monotonic() - started >= 0.5
    assert not session.left


async def test_interrupt_with_warning_needs_another() -> None:
    session = Session(0.1)
    session.answers = [None]
    running = asyncio.create_task(session.interrupts.run(session.live()))
    await session.working.wait()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.1)
    assert not session.leaving.is_set()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(running, 10)
    assert session.left


async def test_save_has_its_own_time_before_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "EXIT_SECONDS", 0.5)
    session = Session(0.1)
    session.answers = [30.0]
    running = asyncio.create_task(session.interrupts.run(session.live()))
    await session.working.wait()
    os.kill(os.getpid(), signal.SIGINT)
    await session.leaving.wait()
    assert session.allowed > 20
    session.interrupts.saved()
    assert session.interrupts.leaving() <= 0.5
    await asyncio.wait_for(running, 10)


async def test_interrupts_next_signal_ends_work_that_stayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the first signal, the work decides to stay. That takes longer than leaving may."""
    monkeypatch.setattr(interrupts, "EXIT_SECONDS", 0.3)
    stays = asyncio.Event()
    ended = asyncio.Event()
    signals = list[signal.Signals]()

    def tell(number: signal.Signals) -> float:
        signals.append(number)
        return 0.0

    handler = Interrupts(tell)

    async def work() -> None:
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            handler.wait_for_another()
            stays.set()
            await asyncio.sleep(FOREVER)
        finally:
            handler.leaving()
            ended.set()

    running = asyncio.create_task(handler.run(work()))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    await stays.wait()
    await asyncio.sleep(0.5)
    assert not ended.is_set()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(running, 10)
    assert ended.is_set()
    assert len(signals) == 2


async def test_interrupts_run_ends_with_work_or_its_error() -> None:
    ended: list[int] = []

    async def ends() -> None:
        ended.append(1)

    async def fails() -> None:
        raise ValueError("broken")

    await Interrupts().run(ends())
    assert ended
    with pytest.raises(ValueError, match="broken"):
        await Interrupts().run(fails())


async def test_time_until_saved_counts_towards_exit_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may have waited for others to leave, although it saved nothing."""
    monkeypatch.setattr(interrupts, "EXIT_SECONDS", 0.5)
    loop = asyncio.get_running_loop()
    signals = Interrupts()
    working = asyncio.Event()
    remaining = list[float]()

    async def work() -> None:
        working.set()
        try:
            await asyncio.sleep(FOREVER)
        finally:
            started = loop.time()
            await asyncio.sleep(0.2)
            signals.saved()
            remaining.append(signals.leaving() + interrupts.CLOSE_SECONDS)
            remaining.append(0.5 - (loop.time() - started))

    running = asyncio.create_task(signals.run(work()))
    await working.wait()
    os.kill(os.getpid(), signal.SIGINT)
    await running
    allowed, expected = remaining
    assert allowed <= expected + 0.01
