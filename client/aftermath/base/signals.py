"""Handle Ctrl-C, SIGTERM and a closed terminal, in an event loop and in sections that must finish.

Windows loops cannot take signal handlers. There, Python's own handlers wake the loop.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from aftermath.base import quiet_interrupts
from aftermath.base.stdio import drop_closed_terminal

# A closed terminal and a lost ssh connection send SIGHUP. Windows has no such signal.
_CLOSED = () if sys.platform == "win32" else (signal.SIGHUP,)
ENDING = (signal.SIGINT, signal.SIGTERM, *_CLOSED)


def _is_heard(number: signal.Signals) -> bool:
    """Return False for SIGHUP under nohup, which ignores it so that the process survives."""
    return number not in _CLOSED or signal.getsignal(number) is not signal.SIG_IGN


@contextmanager
def before_termination(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` before SIGTERM or SIGHUP ends the process, if the loop supports handlers."""
    import asyncio  # commands that need no event loop start without it

    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        try:
            _called(lambda _: callback(), number)
        finally:
            loop.remove_signal_handler(number)
            signal.raise_signal(number)

    with ExitStack() as undone:
        for number in filter(_is_heard, (signal.SIGTERM, *_CLOSED)):
            try:
                loop.add_signal_handler(number, end, number)
            except NotImplementedError:
                continue
            undone.callback(loop.remove_signal_handler, number)
        yield


@contextmanager
def on_signals(callback: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `callback` on the running loop for each Ctrl-C, SIGTERM and SIGHUP, instead of ending.

    SIGHUP keeps being ignored if it is, as under nohup.
    """
    import asyncio  # commands that need no event loop start without it

    loop = asyncio.get_running_loop()
    with ExitStack() as undone:
        for number in filter(_is_heard, ENDING):
            try:
                loop.add_signal_handler(number, _called, callback, number)
                undone.callback(loop.remove_signal_handler, number)
            except NotImplementedError:
                previous = signal.signal(
                    number,
                    lambda received, _: loop.call_soon_threadsafe(
                        _called, callback, signal.Signals(received)
                    ),
                )
                undone.callback(signal.signal, number, previous)
        yield


def _called(callback: Callable[[signal.Signals], None], number: signal.Signals) -> None:
    """Call `callback`. After SIGHUP, what it prints must not fail."""
    if number in _CLOSED:
        drop_closed_terminal()
    callback(number)


def hear_ignored_interrupts() -> None:
    """Let SIGINT end this process. A script that starts it with `&` makes it ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, quiet_interrupts.on_sigint)


@contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGTERM or SIGHUP in this block, as Ctrl-C does.

    Ignore later ones, so that they do not cut short what the first one began: `timeout` and closed
    terminals send several.
    """
    numbers = list(filter(_is_heard, (signal.SIGTERM, *_CLOSED)))

    def first(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        _called(lambda _: quiet_interrupts.on_sigint(number, frame), signal.Signals(number))

    previous = {number: signal.signal(number, first) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
    """Call `callback` at the first Ctrl-C, SIGTERM or SIGHUP. A second one has its usual effect.

    A second SIGHUP does nothing: a closed terminal and its shell may both send one. Do nothing if a
    handler is already installed or the signal is ignored.
    """
    usual: dict[signal.Signals, tuple[object, ...]] = dict.fromkeys(ENDING, (signal.SIG_DFL,))
    usual[signal.SIGINT] = (signal.default_int_handler, quiet_interrupts.on_sigint)
    current = {number: signal.getsignal(number) for number in usual}
    ours = {number: previous for number, previous in current.items() if previous in usual[number]}

    def first(number: int, _: object) -> None:
        restore()
        if number in _CLOSED:
            signal.signal(number, signal.SIG_IGN)
        _called(lambda _: callback(), signal.Signals(number))

    def restore() -> None:
        for number, previous in ours.items():
            signal.signal(number, previous)

    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
