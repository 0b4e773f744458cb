"""Handle Ctrl-C and SIGTERM, in an event loop and in sections that must finish.

Windows loops cannot take signal handlers. There, Python's own handlers wake the loop.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from aftermath.base import quiet_interrupts

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def last_words(said: Callable[[], None]) -> Iterator[None]:
    """Call `said` before SIGTERM ends the process, where the loop supports signal handlers."""
    import asyncio  # commands that need no event loop start without it

    loop = asyncio.get_running_loop()

    def end() -> None:
        said()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    try:
        loop.add_signal_handler(signal.SIGTERM, end)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def heard(told: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `told` on the running loop with every Ctrl-C and SIGTERM, which then do nothing else."""
    import asyncio  # commands that need no event loop start without it

    loop = asyncio.get_running_loop()
    with ExitStack() as undone:
        for number in ENDING:
            try:
                loop.add_signal_handler(number, told, number)
                undone.callback(loop.remove_signal_handler, number)
            except NotImplementedError:
                before = signal.signal(
                    number, lambda got, _: loop.call_soon_threadsafe(told, signal.Signals(got))
                )
                undone.callback(signal.signal, number, before)
        yield


def hear_ignored_interrupts() -> None:
    """Let SIGINT end this process. A script that starts it with `&` makes it ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, quiet_interrupts.told)


@contextmanager
def looped() -> Iterator[None]:
    """Let asyncio take over Ctrl-C in this block. It does so only from Python's default handler."""
    before = signal.getsignal(signal.SIGINT)
    if before is not quiet_interrupts.told:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def on_interrupt(told: Callable[[], None]) -> Iterator[None]:
    """Call `told` at the first Ctrl-C or SIGTERM. A second one has its usual effect.

    Do nothing if a handler is already installed or the signal is ignored.
    """
    usual = {
        signal.SIGINT: (signal.default_int_handler, quiet_interrupts.told),
        signal.SIGTERM: (signal.SIG_DFL,),
    }
    now = {number: signal.getsignal(number) for number in usual}
    ours = {number: before for number, before in now.items() if before in usual[number]}

    def first(*_: object) -> None:
        put_back()
        told()

    def put_back() -> None:
        for number, before in ours.items():
            signal.signal(number, before)

    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        put_back()
