"""Signals on an event loop, also on one to which the system tells none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from aftermath.base.signals import ENDING, heard


class Untold(asyncio.SelectorEventLoop):
    """As the loops of Windows are."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, Untold])
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_told_on_the_loop_and_does_nothing_else(
    loop: Callable[[], asyncio.AbstractEventLoop], number: signal.Signals
) -> None:
    async def twice() -> None:
        told = asyncio.Queue[asyncio.AbstractEventLoop]()
        with heard(lambda: told.put_nowait(asyncio.get_running_loop())):
            for _ in range(2):
                os.kill(os.getpid(), number)
                assert await asyncio.wait_for(told.get(), 30) is asyncio.get_running_loop()

    before = [signal.getsignal(one) for one in ENDING]
    with asyncio.Runner(loop_factory=loop) as runner:
        usual = signal.getsignal(signal.SIGINT)
        runner.run(twice())
        assert signal.getsignal(signal.SIGINT) is usual
    assert [signal.getsignal(one) for one in ENDING] == before
