"""What hands a member's series to an experiment tracker, which may be slow, fail or hang.

Decided
- The tracker lives on a thread of its own. The thread that reports events only puts a row into a queue; the queue is
  bounded, and rows that find it full are lost, for the tracker alone.
- It warns once: that the tracker failed, with its reason, or that it does not keep up. Training continues either way. A
  tracker that cannot begin is over; one that fails at a row is tried with the next.
- A member that is told to stop has two seconds for everything, so the tracker ends as soon as that is heard; after a
  finished run it may take longer, to send what it still has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from aftermath.watch import kinds
from aftermath.watch.series import Row, Series

MOST_ROWS = 2000  # that wait: hours of a slow run's
STUCK_SECONDS = 60.0  # for one answer of the tracker, after which a person is told
END_SECONDS = 20.0  # for the tracker to send what it has
LEAVING_SECONDS = 1.5  # the same, from when the member was told to stop

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """One run in a tracker. Whatever it raises counts as its failure."""

    def log(self, row: Row) -> None:
        """Add the numbers of a step."""

    def finish(self) -> None:
        """Send what is left, and close."""


class Tracking:
    """A sink that keeps a tracker up to date; use as a context manager. `begin` opens the run there, once the member
    has found its run.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[kinds.Started], Tracker],
        *,
        stuck: float = STUCK_SECONDS,
        end: float = END_SECONDS,
        most: int = MOST_ROWS,
    ) -> None:
        self._name, self._begin = name, begin
        self._stuck, self._end, self._most = stuck, end, most
        self._series = Series()
        self._rows: deque[Row] = deque()
        self._changed = threading.Condition()
        self._started: kinds.Started | None = None
        self._thread: threading.Thread | None = None
        self._asked: float | None = None
        """Since when the tracker has not answered."""
        self._closing = self._warned = self._over = False
        self._leaving: float | None = None

    def __call__(self, event: kinds.Event) -> None:
        """Never waits for the tracker, and raises nothing."""
        trouble = None
        with self._changed:
            if isinstance(event, kinds.Started):
                self._started = event
            elif isinstance(event, kinds.RunFound) and self._started is not None and self._thread is None:
                about = self._started.of_run(event)
                self._asked = time.monotonic()
                self._thread = threading.Thread(target=self._work, args=(about,), name=self._name, daemon=True)
                self._thread.start()
            row = self._series.take(event)
            if isinstance(event, kinds.Leaving):
                self._leaving, self._closing = time.monotonic(), True
            elif row is not None and not (self._closing or self._over):
                if len(self._rows) < self._most:
                    self._rows.append(row)
                else:
                    trouble = f"{self._name} does not keep up, and misses figures"
            if self._asked is not None and time.monotonic() - self._asked > self._stuck:
                trouble = f"{self._name} has not answered for {self._stuck:.0f} s, and may miss figures"
            self._changed.notify_all()
        if trouble:
            self._warn(trouble)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            return
        end = self._end if self._leaving is None else self._leaving + LEAVING_SECONDS - time.monotonic()
        self._thread.join(max(0.0, end))
        if self._thread.is_alive():
            self._warn(f"{self._name} was not done in time, and may miss the last figures")

    def _work(self, started: kinds.Started) -> None:
        """The tracker's thread."""
        try:
            tracker = self._begin(started)
        except Exception as error:
            with self._changed:
                self._over, self._asked = True, None
                self._rows.clear()
            self._warn(f"{self._name} cannot be used, and training continues without it: {_why(error)}")
            return
        while (row := self._next()) is not None:
            self._ask(lambda row=row: tracker.log(row))  # type: ignore[misc]
        self._ask(tracker.finish)

    def _next(self) -> Row | None:
        """The next row as soon as there is one, None once there will be none."""
        with self._changed:
            self._asked = None
            while not (self._rows or self._closing):
                self._changed.wait()
            self._asked = time.monotonic()
            return self._rows.popleft() if self._rows else None

    def _ask(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._warn(f"{self._name} fails, and may miss figures: {_why(error)}")

    def _warn(self, sentence: str) -> None:
        with self._changed:
            if self._warned:
                return
            self._warned = True
        _log.warning(sentence)


def _why(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
