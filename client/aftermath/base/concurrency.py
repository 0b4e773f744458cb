"""Run asyncio tasks and threads without leaving any behind.

asyncio: wait for one task or for all, and cancel the rest. Threads: run calls in parallel, with a
deadline, or one at a time on a worker thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
U = TypeVar("U")


async def first_of(*waits: Coroutine[Any, Any, T]) -> T:
    """Return or raise the outcome of the first coroutine to finish, and cancel the others.

    If several finish at once, an error wins over a result, and otherwise the earlier argument wins.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        results = [task.result() for task in tasks if task.done()]
        return results[0]
    finally:
        await cancel(tasks)


async def both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Return both results. Raise the first error after both have ended."""
    one = asyncio.ensure_future(first)
    two = asyncio.ensure_future(second)
    await _finish((one, two))
    return one.result(), two.result()


async def every(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Wait for all. Raise the first error after all have ended."""
    await _finish([asyncio.ensure_future(one) for one in work])


async def _finish(tasks: Collection[asyncio.Future[Any]]) -> None:
    # Not a TaskGroup: callers want the error itself and not a group of one.
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until all have ended. Tasks that have already ended stay as they
    are.
    """
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


class Pulse:
    """Wakes all current waiters when it fires. It holds no state."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    def wait(self) -> Coroutine[Any, Any, Any]:
        """Await the next firing. Counting starts at this call, not when the coroutine first
        runs.
        """
        return self._event.wait()


def each(function: Callable[[T], U], items: Sequence[T], at_once: int) -> list[U]:
    """Return `function` of every item, in order. Start no further item after an error, and raise
    it.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    results: dict[int, U] = {}
    errors: list[BaseException] = []
    waiting = iter(enumerate(items))
    lock = threading.Lock()

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


class Worker(Protocol):
    """Runs a synchronous function away from the event loop: one at a time, in the order asked."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class ThreadWorker:
    """Run functions on one daemon thread, so that a long computation never delays the process's
    exit.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Run `function` on the thread and return its result. Skip a job that was cancelled before
        it began.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, function))
        return await future

    def _work(self) -> None:
        while True:
            future, function = self._jobs.get()
            if future.cancelled():
                continue
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except StopIteration as caught:  # a future cannot hold it
                error = RuntimeError(f"a job raised {caught!r}")
            except BaseException as caught:
                error = caught
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed, because the process is ending
            # free the job's objects when it is done, not when the next one comes
            del future, function, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class TurnLock:
    """A fair lock: threads get it in the order in which they asked.

    With a plain lock, a thread that takes it again at once usually wins over waiting threads. Use
    it in a `with` block, and do not enter it twice from one thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._given = self._now = 0

    def __enter__(self) -> None:
        with self._changed:
            ticket, self._given = self._given, self._given + 1
            self._changed.wait_for(lambda: self._now == ticket)

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._now += 1
            self._changed.notify_all()
