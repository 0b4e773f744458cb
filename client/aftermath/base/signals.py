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
def before_sigterm(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` before SIGTERM ends the process, where the loop supports signal handlers."""
    import asyncio  # commands that need no event loop start without it

    loop = asyncio.get_running_loop()

    def end() -> None:
        callback()
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
def on_signals(callback: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `callback` on the running loop for each Ctrl-C and SIGTERM, instead of ending."""
    import asyncio  # commands that need no event loop start without it

    loop = asyncio.get_running_loop()
    with ExitStack() as undone:
        for number in ENDING:
            try:
                loop.add_signal_handler(number, callback, number)
                undone.callback(loop.remove_signal_handler, number)
            except NotImplementedError:
                previous = signal.signal(
                    number,
                    lambda received, _: loop.call_soon_threadsafe(
                        callback, signal.Signals(received)
                    ),
                )
                undone.callback(signal.signal, number, previous)
        yield


def hear_ignored_interrupts() -> None:
    """Let SIGINT end this process. A script that starts it with `&` makes it ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, quiet_interrupts.on_sigint)


@contextmanager
def asyncio_handles_interrupts() -> Iterator[None]:
    """Let asyncio take over Ctrl-C in this block. It does so only from Python's default handler."""
    previous = signal.getsignal(signal.SIGINT)
    if previous is not quiet_interrupts.on_sigint:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def on_interrupt(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` at the first Ctrl-C or SIGTERM. A second one has its usual effect.

    Do nothing if a handler is already installed or the signal is ignored.
    """
    usual = {
        signal.SIGINT: (signal.default_int_handler, quiet_interrupts.on_sigint),
        signal.SIGTERM: (signal.SIG_DFL,),
    }
    current = {number: signal.getsignal(number) for number in usual}
    ours = {number: previous for number, previous in current.items() if previous in usual[number]}

    def first(*_: object) -> None:
        restore()
        callback()

    def restore() -> None:
        for number, previous in ours.items():
            signal.signal(number, previous)

    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
