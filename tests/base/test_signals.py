"""Test signal handlers on event loops, including loops that do not support them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aftermath.base.signals import ENDING, before_sigterm, on_signals


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
        told = asyncio.Queue[asyncio.AbstractEventLoop]()
        with on_signals(lambda _: told.put_nowait(asyncio.get_running_loop())):
            for _ in range(2):
                os.kill(os.getpid(), number)
                assert await asyncio.wait_for(told.get(), 30) is asyncio.get_running_loop()

    before = [signal.getsignal(one) for one in ENDING]
    with asyncio.Runner(loop_factory=loop) as runner:
        usual = signal.getsignal(signal.SIGINT)
        runner.run(twice())
        assert signal.getsignal(signal.SIGINT) is usual
    assert [signal.getsignal(one) for one in ENDING] == before


def test_sigterm_runs_before_sigterm_and_ends_by_signal() -> None:
    program = (
        "import asyncio, os, signal\n"
        "from aftermath.base.signals import before_sigterm\n"
        "async def end():\n"
        "    with before_sigterm(lambda: print('said', flush=True)):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(end())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "said\n")


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, Untold])
def test_last_words_without_signal_are_not_printed(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    said: list[str] = []

    async def passes() -> None:
        with before_sigterm(lambda: said.append("said")):
            await asyncio.sleep(0)

    before = signal.getsignal(signal.SIGTERM)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(passes())
    assert signal.getsignal(signal.SIGTERM) is before
    assert not said
