"""A lock that threads get in the order in which they asked for it.

Decided: a thread that takes it again at once waits for those that wait already; with a plain lock it would mostly win.
"""

from __future__ import annotations

import threading


class Turns:
    """Holds its turn inside a `with` block, which must not be entered twice by one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._given = self._now = 0

    def __enter__(self) -> None:
        with self._changed:
            own, self._given = self._given, self._given + 1
            self._changed.wait_for(lambda: self._now == own)

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._now += 1
            self._changed.notify_all()
