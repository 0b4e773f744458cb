"""What Ctrl-C does to a command: it ends quietly from its first line on, also while modules are imported; and what it,
or a plain `kill`, does while a command does something that it must not break off anywhere.

Decided
- While a module is imported, Ctrl-C ends the process from within the handler: libraries swallow a KeyboardInterrupt
  then, or abort on it, and Python prints one that it cannot raise. Elsewhere it is a KeyboardInterrupt, so that a
  command cleans up; an event loop has its own way (`looped`).
- Nothing is imported here that takes long: a script begins with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED = 130
_IMPORTS = "<frozen importlib"


@contextmanager
def quietly() -> Iterator[None]:
    """All that a script does: Ctrl-C ends it with one line, whenever it comes. Nothing changes where it is ignored, or
    where somebody else decides already what it does.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _told)
    try:
        yield
    except KeyboardInterrupt:
        end_at_once()
    finally:
        signal.signal(signal.SIGINT, end_at_once)  # the interpreter ends, and prints what it is interrupted in


@contextmanager
def looped() -> Iterator[None]:
    """Ctrl-C as an event loop takes it over: asyncio does so only from Python's own handler."""
    before = signal.getsignal(signal.SIGINT)
    if before is not _told:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def on_interrupt(told: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls this, and a second does what it would have done (KeyboardInterrupt, the end).
    Nothing changes where somebody else decides already what a signal does, or it is ignored.
    """
    usual = {signal.SIGINT: (signal.default_int_handler, _told), signal.SIGTERM: (signal.SIG_DFL,)}
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


def end_at_once(*_: object) -> NoReturn:
    """Say so, and end the process in the middle of whatever it does."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(EXIT_INTERRUPTED)


def _told(_: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTS):
            end_at_once()
        frame = frame.f_back
    raise KeyboardInterrupt
