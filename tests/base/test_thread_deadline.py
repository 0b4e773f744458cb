"""Test a call with a deadline: it gives its result, its error, or the timeout error."""

from __future__ import annotations

import threading

import pytest

from aftermath.base.concurrency import within


class Late(Exception):
    pass


def test_call_within_deadline_returns_or_raises() -> None:
    assert within(60, lambda: 7, Late()) == 7
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0, Late())


def test_timeout_error_of_call_itself_is_raised() -> None:
    def call() -> None:
        raise TimeoutError("of the call")

    with pytest.raises(TimeoutError, match="of the call"):
        within(60, call, Late())


def test_call_beyond_deadline_raises_and_is_ignored() -> None:
    gate = threading.Event()
    ended = threading.Event()

    def call() -> None:
        gate.wait()
        ended.set()

    with pytest.raises(Late):
        within(0.01, call, Late())
    gate.set()
    assert ended.wait(60)
