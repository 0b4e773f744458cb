"""Slow calls on threads that never keep the process from ending: several at once, or one with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def each(function: Callable[[T], U], items: Sequence[T], at_once: int) -> list[U]:
    """What `function` gives for every item, in their order. After an error no further item is begun; it is raised."""
    if len(items) < 2:
        return [function(item) for item in items]
    results: dict[int, U] = {}
    errors: list[BaseException] = []
    waiting, lock = iter(enumerate(items)), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number, item = next(waiting, (-1, items[0]))
            if number < 0 or errors:
                return
            try:
                results[number] = function(item)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(at_once, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]


def within(seconds: float, call: Callable[[], T], late: Exception) -> T:
    """Return what `call` returns, or raise what it raises. Raise `late` after `seconds`.

    The call then continues in its thread, and its outcome is ignored.
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
