"""A deadline for calls into libraries that have none for the whole of what they do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], late: Exception) -> T:
    """What `call` returns or raises; raises `late` if that takes longer.

    The call then goes on in its thread, unheeded; the thread does not keep the process from ending.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="deadline", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():
            raise
        raise late from None
