"""Test that threads get the lock in the order in which they ask for it."""

from __future__ import annotations

import threading

from aftermath.base.concurrency import TurnLock


def test_turn_lock_is_fair_to_waiting_threads() -> None:
    turns = TurnLock()
    order = list[str]()
    ready = threading.Event()

    def ask() -> None:
        ready.set()
        with turns:
            order.append("other")

    other = threading.Thread(target=ask)
    with turns:
        other.start()
        ready.wait()
        while turns._given < 2:  # it stands in the queue
            pass
    with turns:
        order.append("again")
    other.join()
    assert order == ["other", "again"]


def test_turn_lock_is_released_on_error() -> None:
    turns = TurnLock()
    try:
        with turns:
            raise ValueError
    except ValueError:
        pass
    with turns:
        assert turns._now == 1
