"""Test slow, failing and hanging trackers: events continue, with one warning and a timely end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from aftermath.events.event_types import MemberStarted
from aftermath.events.trackers import Row, Tracker, Tracking
from events.sample_events import sample_event

STARTED = sample_event("started", run_id="demo", wallet="Wal1et", tier=1, version="0.1.0")
FOUND = sample_event("run_found", owner="0wner", created=7, identity="0123456789abcdef")


class Notebook:
    """A tracker that first runs a scripted action, then writes the row down."""

    def __init__(self, before: Callable[[Row | None], object] = lambda row: None) -> None:
        self.rows: list[Row] = []
        self.finished = False
        self.before = before

    def log(self, row: Row) -> None:
        self.before(row)
        self.rows.append(row)

    def finish(self) -> None:
        self.before(None)
        self.finished = True


def opened(tracker: Tracker) -> Callable[[MemberStarted], Tracker]:
    return lambda started: tracker


def send_steps(tracking: Tracking, steps: int) -> None:
    tracking(STARTED)
    tracking(FOUND)
    for step in range(steps):
        tracking(sample_event("trained", step=step, loss=1.0))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_tracker_gets_every_row_in_order_and_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    notebook = Notebook()
    with Tracking("notes", opened(notebook)) as tracking:
        send_steps(tracking, 100)
    assert [row.step for row in notebook.rows] == list(range(100))
    assert notebook.finished
    assert warnings(caplog) == []


def test_tracker_opens_once_run_is_found() -> None:
    begun: list[MemberStarted] = []

    def begin(started: MemberStarted) -> Tracker:
        begun.append(started)
        return Notebook()

    with Tracking("notes", begin) as tracking:
        tracking(STARTED)
        tracking(sample_event("error"))
    assert begun == []
    with Tracking("notes", begin) as tracking:
        send_steps(tracking, 1)
    ((name, identity),) = ((started.run_id, started.identity) for started in begun)
    assert (name, identity) == ("demo", "0123456789abcdef")


def test_tracker_failing_at_start_is_reported_once_and_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def begin(started: MemberStarted) -> Tracker:
        raise ConnectionError("no network\nand a long text")

    with Tracking("notes", begin) as tracking:
        send_steps(tracking, 50)
    told_of = "training continues without notes, which failed to start: ConnectionError: no network"
    assert warnings(caplog) == [told_of]


def test_failing_tracker_warns_once_and_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    def odd(row: Row | None) -> None:
        if row is not None and row.step % 2:
            raise RuntimeError

    notebook = Notebook(odd)
    with Tracking("notes", opened(notebook)) as tracking:
        send_steps(tracking, 10)
    assert [row.step for row in notebook.rows] == [0, 2, 4, 6, 8]
    assert notebook.finished
    assert warnings(caplog) == ["notes failed and may lack metrics: RuntimeError"]


def test_hanging_tracker_delays_neither_events_nor_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The tracker never returns, so the test ends only if nothing waits for it."""
    never = threading.Event()
    tracking = Tracking("notes", opened(Notebook(lambda row: never.wait())), end=0.01, most=20)
    with tracking:
        send_steps(tracking, 1000)
    assert warnings(caplog) == ["notes is too slow and loses metrics"]
    never.set()


def test_tracker_hanging_at_start_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    never = threading.Event()

    def begin(started: MemberStarted) -> Tracker:
        never.wait()
        return Notebook()

    with Tracking("notes", begin, stuck=0.0, end=0.01) as tracking:
        send_steps(tracking, 5)
    assert warnings(caplog) == ["notes has not answered for 0 s and may lose metrics"]
    never.set()


def test_slow_tracker_loses_only_rows_beyond_its_queue() -> None:
    go = threading.Event()
    notebook = Notebook(lambda row: go.wait())
    with Tracking("notes", opened(notebook), most=5) as tracking:
        send_steps(tracking, 100)
        go.set()
    steps = [row.step for row in notebook.rows]
    assert steps[:5] == [0, 1, 2, 3, 4]
    assert len(steps) <= 6, "five that waited, and one in its hands"


def test_leaving_member_closes_tracker_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """The tracker is closed while the member is still leaving the run, not afterwards."""
    closed = threading.Event()
    notebook = Notebook(lambda row: closed.set() if row is None else None)
    with Tracking("notes", opened(notebook)) as tracking:
        send_steps(tracking, 3)
        tracking(sample_event("leaving"))
        assert closed.wait(60)
        tracking(sample_event("trained", step=9))
    assert [row.step for row in notebook.rows] == [0, 1, 2]
    assert warnings(caplog) == []


def test_leaving_member_does_not_wait_for_hanging_tracker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    never = threading.Event()
    with Tracking("notes", opened(Notebook(lambda row: never.wait())), end=3600) as tracking:
        send_steps(tracking, 3)
        tracking(sample_event("leaving"))
    assert warnings(caplog) == ["notes did not finish in time and may lack the last metrics"]
    never.set()
