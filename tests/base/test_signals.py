"""Test signal handlers on event loops, including loops that do not support them."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aftermath.base.signals import (
    ENDING,
    before_termination,
    on_interrupt,
    on_signals,
    terminations_interrupt,
)


class Untold(asyncio.SelectorEventLoop):
    """An event loop without signal handlers, like those of Windows."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, Untold])
@pytest.mark.parametrize("number", ENDING)
def test_signal_reaches_only_its_handler_on_loop(
    loop: Callable[[], asyncio.AbstractEventLoop], number: signal.Signals
) -> None:
    async def twice() -> None:
        loops = asyncio.Queue[asyncio.AbstractEventLoop]()
        with on_signals(lambda _: loops.put_nowait(asyncio.get_running_loop())):
            for _ in range(2):
                os.kill(os.getpid(), number)
                assert await asyncio.wait_for(loops.get(), 30) is asyncio.get_running_loop()

    before = [signal.getsignal(one) for one in ENDING]
    with asyncio.Runner(loop_factory=loop) as runner:
        usual = signal.getsignal(signal.SIGINT)
        runner.run(twice())
        assert signal.getsignal(signal.SIGINT) is usual
    assert [signal.getsignal(one) for one in ENDING] == before


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_termination_calls_back_and_ends_by_signal(number: str) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from aftermath.base.signals import before_termination\n"
        "async def end():\n"
        "    with before_termination(lambda: print('said', flush=True)):\n"
        f"        os.kill(os.getpid(), signal.{number})\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(end())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (-signal.Signals[number], "said\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_interrupts_block_only_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cleaned = []

    def interrupted_work() -> None:
        with terminations_interrupt():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGHUP)
                cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted_work()
    assert cleaned
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, Untold])
def test_before_termination_without_signal_is_silent(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    calls: list[str] = []

    async def passes() -> None:
        with before_termination(lambda: calls.append("said")):
            await asyncio.sleep(0)

    before = signal.getsignal(signal.SIGTERM)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(passes())
    assert signal.getsignal(signal.SIGTERM) is before
    assert not calls


def test_on_signals_under_nohup_leaves_sighup_ignored() -> None:
    async def hangs_up() -> None:
        with on_signals(received.append):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.01)

    received: list[signal.Signals] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asyncio.run(hangs_up())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert received == [signal.SIGTERM]


def test_on_interrupt_second_sighup_does_nothing() -> None:
    calls: list[str] = []
    with on_interrupt(lambda: calls.append("ended")):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    assert calls == ["ended"]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


@pytest.mark.slow
def test_process_on_closed_terminal_finishes_its_work(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from aftermath.base.signals import on_signals\n"
        "async def work():\n"
        "    ended = asyncio.Event()\n"
        "    with on_signals(lambda number: (print('stopping', flush=True), ended.set())):\n"
        "        print('ready', flush=True)\n"
        "        await ended.wait()\n"
        "    print('saved', file=sys.stderr, flush=True)\n"
        "    pathlib.Path(sys.argv[1]).touch()\n"
        "asyncio.run(work())\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", program, str(tmp_path / "saved")])
    output = b""
    while b"\n" not in output:
        output += os.read(terminal, 100)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "saved").exists()
