"""Test a run's history from events: losses by tier, bytes, epochs, exits, returns, and its plot."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from aftermath.events.history import EventHistory
from aftermath.events.plot import run_plot, step_plot
from aftermath.events.reader import EventOrigin, EventRecord
from events.sample_events import sample_event

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


class Run:
    """A run whose members emit scripted events, one after the other."""

    def __init__(self) -> None:
        self.history = EventHistory(lambda record: record.origin.wallet)
        self.now = NOON

    def say(self, wallet: str, kind: str, file: str = "x", **fields: Any) -> None:
        self.now += timedelta(seconds=1)
        origin = EventOrigin("demo", wallet, int(wallet[-1]), "0.1.0")
        self.history.take(EventRecord(self.now, origin, sample_event(kind, **fields), Path(file)))

    def start(self, *wallets: str) -> None:
        for seat, wallet in enumerate(wallets):
            self.say(wallet, "started")
            self.say(wallet, "joined", seat=seat)

    def step(self, step: int, **losses: float) -> None:
        for wallet, loss in losses.items():
            self.say(wallet, "round", epoch=step // 10, step=step)
            self.say(wallet, "trained", epoch=step // 10, step=step, loss=loss, tokens=100)
            self.say(wallet, "traffic", sent=1000 * step)


def test_losses_are_weighted_by_tokens_per_tier() -> None:
    run = Run()
    run.start("a0", "b1", "c1")
    run.step(1, a0=4.0, b1=5.0)
    run.say("c1", "trained", step=1, loss=8.0, tokens=300)
    run.say("c1", "trained", step=2, loss=None, tokens=300)
    run.step(2, a0=3.0)
    assert run.history.loss_curve() == [(1, (4.0 + 5.0 + 3 * 8.0) / 5), (2, 3.0)]
    assert run.history.loss_by_tier() == {0: [(1, 4.0), (2, 3.0)], 1: [(1, (5.0 + 3 * 8.0) / 4)]}


@pytest.mark.parametrize(
    "starts", [("started", "run_found"), ("run_found",)], ids=["both", "of the run alone"]
)
def test_second_process_counts_once_as_return(starts: tuple[str, ...]) -> None:
    run = Run()
    for step in (1, 2):
        for kind in starts:
            run.say("a0", kind)
        run.step(step, a0=1.0)
    assert run.history.marks == [(1, "a0 disappeared"), (2, "a0 rejoined")]
    assert run.history.sent_by_tier() == {0: [(1, 1000.0), (2, 3000.0)]}


def test_epochs_begin_with_first_reported_step() -> None:
    run = Run()
    run.start("a0", "b1")
    for step in range(1, 25):
        run.step(step, a0=1.0, b1=1.0)
    assert run.history.epochs == {0: 1, 1: 10, 2: 20}


def test_bytes_continue_after_restart_of_process() -> None:
    run = Run()
    run.start("a0", "b1")
    run.step(1, a0=1.0, b1=1.0)
    run.step(2, a0=1.0, b1=1.0)
    run.say("b1", "started")
    run.say("b1", "trained", step=3, loss=1.0, tokens=1)
    run.say("b1", "traffic", sent=500)
    assert run.history.sent_by_tier() == {
        0: [(1, 1000.0), (2, 2000.0)],
        1: [(1, 1000.0), (2, 2000.0), (3, 2500.0)],
    }


@pytest.mark.parametrize("reported", [True, False])
def test_died_and_returned_member_is_marked(reported: bool) -> None:
    run = Run()
    run.start("a0", "b1")
    run.step(1, a0=1.0, b1=1.0)
    run.step(2, a0=1.0)
    if reported:
        run.say("a0", "dropped", seats=[1], height=1)
        run.say("a0", "dropped", seats=[1], height=1)
    run.say("b1", "started")
    run.step(3, a0=1.0, b1=1.0)
    run.step(4, a0=1.0, b1=1.0)
    assert run.history.marks == [
        (1, "b1 dropped" if reported else "b1 disappeared"),
        (3, "b1 rejoined"),
    ]


@pytest.mark.parametrize("seat", [None, 1, 2], ids=["not joined", "same seat", "other seat"])
def test_drop_reported_after_restart_adds_no_mark(seat: int | None) -> None:
    run = Run()
    run.start("a0", "b1")
    run.step(1, a0=1.0, b1=1.0)
    run.step(2, a0=1.0)
    run.say("b1", "started")
    if seat is not None:
        run.say("b1", "joined", seat=seat)
    run.say("a0", "dropped", seats=[1], height=1)
    run.step(3, a0=1.0, b1=1.0)
    assert run.history.marks == [(1, "b1 disappeared"), (3, "b1 rejoined")]


def test_loss_in_former_seat_is_not_of_moved_member() -> None:
    run = Run()
    run.start("a0", "b1")
    run.step(1, a0=1.0, b1=1.0)
    run.say("b1", "started")
    run.say("b1", "joined", seat=2)
    run.step(2, a0=1.0, b1=1.0)
    run.say("a0", "dropped", seats=[1, 2], height=2)
    assert run.history.marks == [
        (1, "b1 disappeared"),
        (2, "b1 rejoined"),
        (2, "seat 1 dropped"),
        (2, "b1 dropped"),
    ]


def test_member_leaving_by_itself_is_not_marked_dead() -> None:
    run = Run()
    run.start("a0", "b1", "c2")
    run.step(1, a0=1.0, b1=1.0, c2=1.0)
    run.say("b1", "left", finished=False)
    run.say("c2", "error", message="no memory")
    for wallet in ("b1", "c2"):
        run.say(wallet, "started")
    run.step(2, a0=1.0, b1=1.0)
    run.say("a0", "finished", step=2)
    run.say("a0", "left", finished=True)
    assert run.history.marks == [(1, "b1 left"), (1, "c2 failed"), (2, "b1 rejoined")]


def test_stopped_member_that_keeps_its_seat_is_not_marked_dead() -> None:
    run = Run()
    run.start("a0", "b1", "c2")
    run.step(1, a0=1.0, b1=1.0, c2=1.0)
    run.say("a0", "leaving", saves=True)
    run.say("a0", "stopped", step=1, path="a", continues=True)
    run.say("b1", "leaving")
    for wallet in ("a0", "b1", "c2"):
        run.say(wallet, "started")
    run.step(2, a0=1.0)
    assert run.history.marks == [
        (1, "a0 stopped"),
        (1, "b1 stopped"),
        (1, "c2 disappeared"),
        (2, "a0 rejoined"),
    ]


def test_repeated_marks_of_one_step_all_stay() -> None:
    """A step is trained again after its loss. A loss is an error after the member left."""
    run = Run()
    run.start("a0")
    for _ in range(2):
        run.step(19, a0=1.0)
        run.say("a0", "left", finished=False)
        run.say("a0", "error", message="7 trained steps are lost")
        run.start("a0")
    run.step(19, a0=1.0)
    assert run.history.marks == [(19, "a0 left"), (19, "a0 rejoined")] * 2


def test_process_that_ended_before_it_joined_has_no_mark() -> None:
    run = Run()
    run.say("a0", "started")
    run.say("a0", "run_found")
    run.start("a0")
    run.step(1, a0=1.0)
    assert run.history.marks == []


@pytest.mark.parametrize("file", ["x", "other"], ids=["one export", "own files"])
def test_refused_second_process_has_no_mark(file: str) -> None:
    run = Run()
    run.start("a0")
    run.step(1, a0=1.0)
    run.say("a0", "started", file)
    run.say("a0", "run_found", file)
    if file == "other":
        run.step(2, a0=1.0)
    run.say("a0", "error", file, message="another process has this wallet")
    run.step(3, a0=1.0)
    assert run.history.marks == []
    if file == "other":
        assert run.history.sent_by_tier() == {0: [(1, 1000.0), (2, 2000.0), (3, 3000.0)]}


def begin_rounds(run: Run, wallet: str, begin: int, end: int, since: int) -> None:
    for step in range(begin, end):
        run.say(wallet, "round", epoch=0, step=step, since=since + step)
        run.say(wallet, "trained", epoch=0, step=step, loss=1.0, tokens=100)


@pytest.mark.parametrize("reported", [True, False])
def test_return_of_run_to_earlier_step_is_marked_once(reported: bool) -> None:
    run = Run()
    run.start("a0", "b1")
    begin_rounds(run, "a0", 1, 9, since=100)
    begin_rounds(run, "b1", 5, 9, since=100)
    if reported:
        run.say("a0", "rewound", before=8, step=4)
    begin_rounds(run, "a0", 5, 9, since=200)
    begin_rounds(run, "b1", 5, 9, since=200)
    assert run.history.marks == [(4, "went back from step 8")]


def test_steps_trained_again_without_return_have_no_mark() -> None:
    run = Run()
    run.start("a0")
    begin_rounds(run, "a0", 1, 9, since=100)
    begin_rounds(run, "a0", 7, 9, since=200)
    assert run.history.marks == []


def test_return_of_model_to_checkpoint_is_marked() -> None:
    run = Run()
    run.start("a0", "b1")
    run.say("a0", "model", source="a Hub", step=100, checkpoint_step=0)
    assert run.history.marks == [], "nothing was trained yet"
    begin_rounds(run, "a0", 101, 109, since=100)
    for wallet in ("a0", "b1"):
        run.say(wallet, "model", source="a Hub", step=108, checkpoint_step=104)
    run.say("b1", "model", source="a Hub", step=112, checkpoint_step=112)
    assert run.history.marks == [(108, "back to the checkpoint of step 104")]


def test_unnoticed_return_names_newest_trained_step() -> None:
    """Round 4 had begun, but nobody trained it."""
    run = Run()
    run.start("a0")
    begin_rounds(run, "a0", 1, 4, since=100)
    run.say("a0", "round", epoch=0, step=4, since=104)
    begin_rounds(run, "a0", 1, 3, since=200)
    assert run.history.marks == [(0, "went back from step 3")]


def test_levels_that_went_back_are_named() -> None:
    run = Run()
    run.start("a0", "b1")
    begin_rounds(run, "a0", 1, 11, since=100)
    for wallet, step in (("a0", None), ("b1", 5)):
        back = {"checkpoint_step": step, "lost_levels": (0, 1), "lost_to": 5}
        run.say(wallet, "model", source="peers", step=10, **back)
    assert run.history.marks == [(10, "levels 0, 1 back to the checkpoint of step 5")]


def test_members_without_events_are_named_by_seat() -> None:
    run = Run()
    run.start("a0")
    run.step(7, a0=1.0)
    run.say("a0", "dropped", seats=[5, 9], height=1)
    run.say("a0", "ejected", seat=3, height=1)
    run.say("a0", "rewound", before=7, step=2)
    assert run.history.marks == [
        (7, "seat 5 dropped"),
        (7, "seat 9 dropped"),
        (7, "seat 3 ejected"),
        (2, "went back from step 7"),
    ]


def _texts(path: Path) -> str:
    """Return the texts of an SVG, which are comments next to its strokes."""
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    return path.read_text()


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_run_plot_has_tiers_epochs_bytes_and_marks(tmp_path: Path, suffix: str) -> None:
    run = Run()
    run.start("a0", "b1")
    for step in range(1, 30):
        run.step(step, a0=5 - step / 10, b1=6 - step / 10)
    run.say("a0", "dropped", seats=[1, 8], height=1)
    history = run.history
    path = tmp_path / f"loss{suffix}"
    run_plot(
        path,
        history.loss_by_tier(),
        history.sent_by_tier(),
        history.epochs,
        history.marks,
        "run $x^$ <b>\x1b[2J",
    )
    if suffix == ".png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    drawn = _texts(path)
    for text in (
        "tier 0",
        "tier 1",
        "epoch 0",
        "epoch 2",
        "b1 dropped",
        "seat 8 dropped",
        "sent to peers (MB)",
    ):
        assert f"<!-- {text}" in drawn or f"<!--  {text}" in drawn, text


def test_step_plot_is_png_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    step_plot(
        path,
        {"training": [(1, 5.0), (2, 4.0)], "held out": [(2, 4.5)]},
        [(2, "m1 killed")],
        "tiers 0, 1",
    )
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 960


def _strokes(path: Path) -> int:
    """Return how many separate lines the curves consist of. All other strokes are thinner."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*stroke-width: 1\.5', path.read_text())
    return sum(line.count("M") for line in paths)


def test_plot_line_has_gap_for_missing_steps(tmp_path: Path) -> None:
    path = tmp_path / "loss.svg"
    whole = [(step, 5 - step / 20) for step in range(1, 40)]
    for gap, strokes in ((range(0), 1), (range(12, 14), 1), (range(12, 30), 2)):
        run_plot(path, {0: [point for point in whole if point[0] not in gap]}, {}, {}, [], "gap")
        assert _strokes(path) == strokes, gap


def test_plot_of_one_member_has_tier_and_valid_axes(tmp_path: Path) -> None:
    path = tmp_path / "loss.svg"
    run_plot(
        path,
        {2: [(1, 5.0), (2, 4.0), (3, 3.5)]},
        {2: [(1, 0), (2, 0), (3, 0)]},
        {0: 1},
        [],
        "alone",
    )
    drawn = _texts(path)
    assert "<!-- loss (nats per token), tier 2 -->" in drawn
    assert {"<!-- 1 -->", "<!-- 2 -->", "<!-- 3 -->"} <= set(re.findall(r"<!-- .*? -->", drawn))
    assert "1.5 -->" not in drawn
    assert "\N{MINUS SIGN}" not in drawn
    assert "<!-- step -->" in drawn
    assert "sent to peers" not in drawn, "it sent nothing"


def test_four_close_marks_do_not_cover_each_other(tmp_path: Path) -> None:
    path = tmp_path / "loss.svg"
    marks = [(20, "m1 killed"), (20, "m2 killed"), (20, "m1 is back"), (20, "m2 is back")]
    marks += marks[:3]
    run_plot(path, {0: [(1, 5.0), (40, 2.0)]}, {}, {}, marks, "close")
    places = re.findall(
        r'<!--  (?:m\d [a-z ]+?(?: \(2 times\))?)  -->\s*<g[^>]*transform="translate\(([\d.]+) ([\d.]+)\)',
        _texts(path),
    )
    assert len({(round(float(x)), round(float(y), -2)) for x, y in places}) == len(places) == 4
    assert _texts(path).count("(2 times)") == 3


def test_labels_of_many_close_marks_do_not_cover_each_other(tmp_path: Path) -> None:
    """A label without a free place is left out, unless it tells of lost steps."""
    path = tmp_path / "loss.svg"
    marks = [(20 + number % 2, f"m{number} left") for number in range(8)]
    marks.append((20, "back to the checkpoint of step 9"))
    run_plot(path, {0: [(1, 5.0), (40, 2.0)]}, {}, {}, marks, "close")
    drawn = _texts(path)
    places = re.findall(r"<!--  m\d left  -->", drawn)
    assert len(places) == 2, "on the other side of the line, at both ends"
    assert "back to the checkpoint of step 9" in drawn


@pytest.mark.slow
def test_plot_of_long_run_limits_labels(tmp_path: Path) -> None:
    epochs = {epoch: 10 * epoch + 1 for epoch in range(500)}
    marks = [(step, f"seat {step} dropped") for step in range(100)]
    marks.append((50, "back to the checkpoint of step 40"))
    path = tmp_path / "loss.svg"
    run_plot(path, {0: [(1, 5.0), (5000, 2.0)]}, {}, epochs, marks, "long")
    drawn = _texts(path)
    assert drawn.count("<!-- epoch ") == 12
    assert "dropped" not in drawn
    assert "back to the checkpoint of step 40" in drawn
