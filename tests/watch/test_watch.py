"""What people see of a run: safe text, console lines, the terminal view, the plot."""

from __future__ import annotations

import io
import logging
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from aftermath.cli.present import facts, listing
from aftermath.watch.events import ConsoleLines, Event, Events, LogWarnings
from aftermath.watch.plot import loss_plot
from aftermath.watch.printable import printable
from aftermath.watch.spark import spark
from aftermath.watch.terminal import TerminalView

EVIL = "a[/b]\x1b[2J\x1b]0;owned\x07\u202egpj.exe\r"


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
    assert printable(shown) == shown


def test_ordinary_text_stays() -> None:
    assert printable("Grüße, 世界 – 1 → 2") == "Grüße, 世界 – 1 → 2"
    assert printable("a\nb", keep="\n") == "a\nb"


def _drawn(thing: object) -> str:
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=True, color_system=None).print(thing)
    return out.getvalue()


def test_names_of_runs_cannot_steer_the_terminal_of_a_command() -> None:
    for table in (listing(["run", "name"], [[EVIL, [EVIL, EVIL]]]), facts({"name": EVIL})):
        shown = _drawn(table)
        assert "a[/b]" in shown
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown


def test_what_a_module_warns_of_is_an_event_in_one_line() -> None:
    seen: list[Event] = []
    log = logging.Logger("test")
    log.addHandler(LogWarnings(Events(lambda: 1.5, [seen.append])))
    log.info("nothing to tell")
    log.warning("peer %s is gone", "ab")
    try:
        raise OSError("no way")
    except OSError:
        log.exception("dialling failed")
    assert [(event["t"], event["kind"], event["message"]) for event in seen] == [
        (1.5, "warning", "peer ab is gone"),
        (1.5, "warning", "dialling failed: OSError: no way"),
    ]


def test_the_view_says_what_the_member_does_now() -> None:
    view = TerminalView("demo", 1)
    seen = []
    for event in (
        {"t": 1.0, "kind": "state", "epoch": 3, "state": "WARMUP"},
        {"t": 2.0, "kind": "round", "epoch": 3, "height": 7, "step": 90},
        {"t": 3.0, "kind": "witnessed", "height": 6, "held": 3, "sent": True, "seconds": 0.1},
        {"t": 4.0, "kind": "trained", "epoch": 3, "height": 7, "step": 90, "loss": 2.0, "tokens_per_sec": 1.0},
        {"t": 5.0, "kind": "cooldown", "epoch": 3, "step": 91, "hashes": {}},
    ):
        view(event)
        seen.append(_drawn(view._picture()))
    phases = ("warmup", "round 7: training", "round 7: training", "round 7: sharing", "cooldown")
    assert all(
        f"epoch 3{':' if words in ('warmup', 'cooldown') else ''} {words}" in shown
        for words, shown in zip(phases, seen, strict=True)
    )


def test_nor_that_of_a_member() -> None:
    out = io.StringIO()
    lines = ConsoleLines(Console(file=out, width=200))
    lines({"t": 1.0, "kind": "warning", "message": f"{EVIL}\nand its fix"})
    assert "a[/b]" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    view = TerminalView(EVIL, 1)
    for event in (
        {"t": 1.0, "kind": "state", "epoch": 0, "state": "ROUND_TRAIN"},
        {"t": 2.0, "kind": "trained", "epoch": 0, "height": 1, "step": 3, "loss": 2.5, "tokens_per_sec": 10.0},
        {"t": 3.0, "kind": "trained", "epoch": 0, "height": 1, "step": 4, "loss": None, "tokens_per_sec": 10.0},
        {"t": 4.0, "kind": "warning", "message": EVIL},
    ):
        view(event)
    shown = _drawn(view._picture())
    assert "epoch 0 round 1: sharing" in shown
    assert "2.5000" in shown
    assert "a[/b]" in shown
    assert "\x1b]" not in shown


def test_a_spark_line_has_its_ends_at_the_lowest_and_highest() -> None:
    assert spark([]) == ""
    assert spark([1.0]) == "▁"
    assert spark([3.0, 1.0, 2.0]) == "█▁▅"
    assert len(spark(list(map(float, range(100))))) == 60


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    loss_plot(path, [(1, 5.0), (2, 4.0)], [(2, "m1 killed")], "tiers 0, 1")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 960
