"""What people see of a run: safe text and console lines."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from aftermath.base.text import counted
from aftermath.cli.present import facts, listing
from aftermath.events import event_types
from aftermath.events.console import ConsoleLines
from aftermath.events.event_types import Event, Warning
from aftermath.events.plot import loss_line, sparkline
from aftermath.events.printable import json_text, printable
from aftermath.events.stream import Events, LogWarnings, line_of
from events.sample_events import KINDS, sample_event

EVIL = "a[/b]\x1b[2J\x1b]0;owned\x07\u202egpj.exe\r"
NOON = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)


def test_full_disk_under_log_and_stderr_costs_only_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a disk follows `train ... > log 2>&1`: no stream is left to report the failure."""
    received_events: list[Any] = []
    with (
        Path("/dev/full").open("w", buffering=1) as log,
        Path("/dev/full").open("w", buffering=1) as stderr,
    ):
        monkeypatch.setattr(sys, "stderr", stderr)
        events = Events(
            lambda: 1.5, [ConsoleLines(Console(file=log), lambda: NOON), received_events.append]
        )
        for step in (1, 2):
            events.emit(Warning(message=f"trouble {step}"))
        with contextlib.suppress(OSError):
            stderr.close()
        with contextlib.suppress(OSError):
            log.close()
    assert [event.message for event in received_events] == ["trouble 1", "trouble 2"]


@given(st.text())
def test_printable_text_has_no_terminal_codes(text: str) -> None:
    clean = printable(text)
    assert len(clean) == len(text)
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in clean)
    assert not set(clean) & set("\u200e\u200f\u061c\u2028\u2029\u202e\u2066\ufeff")
    assert printable(clean) == clean


@given(st.dictionaries(st.text(), st.text()))
def test_json_text_escapes_and_keeps_its_value(value: dict[str, str]) -> None:
    document = json_text(value, indent=1)
    assert document == printable(document, keep="\n")
    assert json.loads(document) == value


def test_every_event_kind_is_read_back_from_file() -> None:
    kinds = {
        kind
        for kind in vars(event_types).values()
        if isinstance(kind, type) and issubclass(kind, Event)
    }
    assert set(KINDS.values()) == kinds - {Event}


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        (None, "using compiled CPU kernels"),
        ("numba is not installed", "using PyTorch kernels: numba is not installed"),
    ],
)
def test_kernel_event_prints_one_line(missing: str | None, line: str) -> None:
    out = io.StringIO()
    lines = ConsoleLines(Console(file=out, width=120), lambda: NOON)
    lines(sample_event("compiling"))
    lines(sample_event("kernels", missing=missing))
    compiling, ending = out.getvalue().splitlines()
    assert "compiling kernels for this machine" in compiling
    assert line in ending


def test_printable_keeps_ordinary_text() -> None:
    assert printable("Grüße, 世界 – 1 → 2") == "Grüße, 世界 – 1 → 2"
    assert printable("a\nb", keep="\n") == "a\nb"
    assert json_text("Grüße, 世界 \N{FAMILY}") == '"Grüße, 世界 \N{FAMILY}"'


def _drawn(thing: object) -> str:
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=True, color_system=None).print(thing)
    return out.getvalue()


def test_run_names_in_tables_are_escaped() -> None:
    for table in (listing(["run", "name"], [[EVIL, [EVIL, EVIL]]]), facts({"name": EVIL})):
        drawing = _drawn(table)
        assert "a[/b]" in drawing
        assert "\x1b]" not in drawing
        assert "\x1b[2J" not in drawing
        assert "\u202e" not in drawing


def test_table_on_narrow_terminal_keeps_copyable_values() -> None:
    wallet = "4vHBmwGHnHQHTB8DGvbsByPimV1auSND465FymNk4LL3"
    out = io.StringIO()
    Console(width=40, file=out).print(listing(["seat", "wallet"], [[0, wallet]]))
    assert "".join(line[6:].strip() for line in out.getvalue().splitlines()[1:]) == wallet


def test_module_warning_is_one_line_event() -> None:
    received_events: list[Any] = []
    log = logging.Logger("test")
    log.addHandler(LogWarnings(Events(lambda: 1.5, [received_events.append])))
    log.info("nothing to tell")
    log.warning("peer %s is gone", "ab")
    try:
        raise OSError("no way")
    except OSError:
        log.exception("dialling failed")
    assert [(event.t, type(event), event.message) for event in received_events] == [
        (1.5, Warning, "peer ab is gone"),
        (1.5, Warning, "dialling failed: OSError: no way"),
    ]


def test_member_text_in_lines_is_escaped() -> None:
    out = io.StringIO()
    lines = ConsoleLines(Console(file=out, width=200), lambda: NOON)
    lines(sample_event("warning", message=f"{EVIL}\nand its fix"))
    assert "a[/b]" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_console_lines_read_in_order() -> None:
    out = io.StringIO()
    lines = ConsoleLines(Console(file=out, width=200), lambda: NOON)
    events: list[Event] = [
        sample_event("started", run_id="demo", tier=1, wallet="Wal1et", version="0.1.0"),
        sample_event("measuring", tier=1, parameters=672_896, limit=10.0),
        sample_event("measured", weight=1_579, seconds=1.2),
        sample_event("joined", seat=0, tier=1, weight=1_579, epoch=0),
        sample_event(
            "state", epoch=0, state="WAITING_FOR_MEMBERS", step=0, total_steps=120, since=5
        ),
        sample_event("model", source="the checkpoint", step=0),
        sample_event("round", epoch=0, height=0, step=1, since=6),
        sample_event("trained", epoch=0, height=0, step=1, loss=5.75, tokens_per_sec=3678.4),
        sample_event("round", epoch=0, height=1, step=2, since=7),
        sample_event("trained", epoch=0, height=1, step=2, loss=None, tokens_per_sec=3678.4),
        sample_event("applied", epoch=0, height=0, step=1, results=1),
        sample_event("applied", epoch=0, height=1, step=2, results=3),
        sample_event("checkpoint", step=120, path="/kept/demo-step120"),
        sample_event("leaving"),
        sample_event("left"),
        sample_event("finished", step=120),
    ]
    for event in events:
        lines(event)
    assert [line.split(" INFO    ", 1)[1] for line in out.getvalue().splitlines()] == [
        "run demo, tier 1, wallet Wal1et, aftermath 0.1.0",
        "benchmarking tier 1 (672,896 parameters): up to 10 s once the model is made",
        "this machine trains about 1,579 sequences a minute",
        "signed up for the next epoch (seat 0, tier 1)",
        "epoch 0: waiting for members; step 0 of 120",
        "loaded the model from the checkpoint; the run is at step 0",
        "epoch 0: training; step 0 of 120",
        "step 1  loss 5.7500  3,678 tokens/s",
        "step 2  loss nan  3,678 tokens/s",
        "step 1: applied 1 result",
        "step 2: applied 3 results",
        "checkpoint of step 120 at /kept/demo-step120",
        "stopping",
        "left the run",
        "the run is finished: 120 steps",
    ]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (sample_event("left"), "2026-11-21T12:00:00.250Z INFO    left the run"),
        (
            sample_event("warning", message="[b]slow[/b]\nfix it"),
            "2026-11-21T12:00:00.250Z WARNING [b]slow[/b]\n    fix it",
        ),
        (
            sample_event("error", message="full"),
            "2026-11-21T12:00:00.250Z ERROR   ends with an error: full",
        ),
        (
            sample_event("dropped", seats=[2], height=4),
            "2026-11-21T12:00:00.250Z INFO    the member in seat 2 did not deliver and is dropped",
        ),
        (
            sample_event("dropped", seats=[2, 5], height=4),
            "2026-11-21T12:00:00.250Z INFO    "
            "the members in seats 2, 5 did not deliver and are dropped",
        ),
    ],
)
def test_log_line_has_utc_time_and_level_word(event: Event, line: str) -> None:
    out = io.StringIO()
    ConsoleLines(
        Console(file=out, width=200), lambda: NOON.astimezone(timezone(timedelta(hours=5)))
    )(event)
    assert out.getvalue() == f"{line}\n"
    written = json.loads(line_of(event, NOON))
    assert written.get("severity", "INFO") == line.split()[1]
    assert written["at"] == "2026-11-21T12:00:00.250+00:00"


def test_console_lines_use_singular_for_one() -> None:
    out = io.StringIO()
    lines = ConsoleLines(Console(file=out, width=200), lambda: NOON)
    for event in (
        sample_event("measured", weight=1, seconds=60.0),
        sample_event(
            "traffic", peers=1, sent=1, received=1, costs={"transactions": 1, "lamports": 5000}
        ),
        sample_event("finished", step=1),
    ):
        lines(event)
    assert "this machine declares 1 sequence a minute" in out.getvalue()
    assert "the run is finished: 1 step\n" in out.getvalue()
    assert [counted(n, "step") for n in (0, 1, 2, 1200)] == [
        "0 steps",
        "1 step",
        "2 steps",
        "1,200 steps",
    ]


def test_spark_line_ends_are_lowest_and_highest() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0]) == "▁"
    assert sparkline([3.0, 1.0, 2.0]) == "█▁▅"


@pytest.mark.parametrize("width", [60, 76, 196])
@pytest.mark.parametrize("steps", [2, 7, 120, 5000])
def test_loss_line_labels_equal_first_and_last_bar(steps: int, width: int) -> None:
    """The labels are the values of the first and the last bar, whatever is left out between
    them.
    """
    curve = [(step, 6.0 - 3.0 * step / steps) for step in range(1, steps + 1)]
    line = loss_line(curve, width)
    assert len(line) <= width
    assert line.startswith(f"loss, steps 1 to {steps}:  {curve[0][1]:.3f} █")
    assert line.endswith(f"▁ {curve[-1][1]:.3f}")
    assert (
        len(line) == width or line.count("▁") + sum(line.count(bar) for bar in "▂▃▄▅▆▇█") == steps
    )


def test_loss_line_draws_all_steps() -> None:
    """Half of the steps are high and half are low, and so are the bars."""
    line = loss_line([(step, 6.0 if step <= 500 else 3.0) for step in range(1, 1001)], 76)
    bars = line.removeprefix("loss, steps 1 to 1000:  6.000 ").removesuffix(" 3.000")
    assert abs(bars.count("█") - bars.count("▁")) <= 1
    assert bars == "█" * bars.count("█") + "▁" * bars.count("▁")


def test_loss_line_of_one_or_no_step_is_a_sentence() -> None:
    assert loss_line([], 70) == "no loss yet"
    assert loss_line([(4, 2.5)], 70) == "loss at step 4: 2.500"
