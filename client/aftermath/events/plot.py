"""Draw curves: as image files, as tables of numbers, and as lines of bars."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from aftermath.base.outputs import output_file
from aftermath.events.printable import printable

Curve = Sequence[tuple[int, float]]
LOSS = "loss (nats per token)"
_MADE_BY = "drawn by aftermath"
_METADATA = {
    "png": {"Software": _MADE_BY},
    "svg": {"Creator": _MADE_BY},
    "pdf": {"Creator": _MADE_BY},
}
_EPOCHS_NAMED = 12
_GAP = 4
"""Multiple of the usual distance between two points beyond which no line connects them."""
_MARKS_NAMED = 24  # more labels would overlap
_LABEL_WIDTH = 0.025  # of a panel's width
_HALF_HEIGHT = 28  # characters of a label that fill half of a panel's height
_LOSS = re.compile(r"\bback (?:to|from)\b")
"""In the marks of lost steps: "went back from step 8", "levels 0, 1 back to the checkpoint"."""


def step_plot(
    path: Path,
    curves: Mapping[str, Curve],
    marks: Sequence[tuple[int, str]],
    title: str,
    measure: str = LOSS,
) -> None:
    """Draw curves over steps to `path`. `marks` are (step, text), drawn as vertical lines."""
    figure, (axes,) = _figure(1)
    _draw(axes, curves, measure)
    _mark(axes, marks)
    axes.set_xlabel("step")
    axes.set_title(printable(title), parse_math=False)
    _write(figure, path)


def run_plot(
    path: Path,
    losses: Mapping[int, Curve],
    sent: Mapping[int, Curve],
    epochs: Mapping[int, int],
    marks: Sequence[tuple[int, str]],
    title: str,
) -> None:
    """Draw a run's history to `path`: the loss of each tier above, the bytes it sent below.

    Without bytes sent, there is no lower panel. `epochs` maps epoch numbers to first steps. `marks`
    are as in `step_plot`.
    """
    megabytes = {
        f"tier {tier}": [(step, count / 1e6) for step, count in curve]
        for tier, curve in sent.items()
    }
    sends = any(count for curve in sent.values() for _, count in curve)
    figure, panels = _figure(2 if sends else 1)
    loss = panels[0]
    measure = LOSS if len(losses) != 1 else f"{LOSS}, tier {next(iter(losses))}"
    _draw(loss, {f"tier {tier}": curve for tier, curve in losses.items()}, measure)
    if sends:
        traffic = panels[1]
        _draw(traffic, megabytes, "sent to peers (MB)", gaps=False)
        traffic.set_ylim(bottom=0)
    for axes in panels:
        for step in epochs.values():
            axes.axvline(step, color="lightgrey", linewidth=1, zorder=0)
    labelled_epochs = [sorted(epochs)[index] for index in evenly(len(epochs), _EPOCHS_NAMED)]
    for epoch in labelled_epochs:
        position = (epochs[epoch], 1.0)
        loss.annotate(
            f"epoch {epoch}",
            position,
            xycoords=("data", "axes fraction"),
            fontsize=7,
            va="bottom",
            rotation=35,
        )
    _mark(loss, marks)
    panels[-1].set_xlabel("step")
    figure.suptitle(printable(title), parse_math=False)
    _write(figure, path)


def _figure(rows: int) -> tuple[Any, Sequence[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = (3, 1.4)[:rows]
    figure, axes = pyplot.subplots(
        rows,
        figsize=(8, 4.5 * sum(heights) / 3),
        dpi=120,
        sharex=True,
        squeeze=False,
        height_ratios=heights,
    )
    for row in axes[:, 0]:
        row.xaxis.get_major_locator().set_params(integer=True)  # steps are whole numbers
    return figure, list(axes[:, 0])


def _pieces(curve: Curve) -> list[Curve]:
    """Split the curve at gaps that are much longer than usual."""
    steps = [step for step, _ in curve]
    usual = (
        median(following - previous for previous, following in pairwise(steps))
        if len(steps) > 1
        else 1
    )
    cuts = [
        index for index in range(1, len(steps)) if steps[index] - steps[index - 1] > _GAP * usual
    ]
    return [curve[first:last] for first, last in pairwise((0, *cuts, len(curve)))]


def _columns(pieces: Sequence[Curve]) -> tuple[list[float], list[float]]:
    """Return steps and values, with a break after every piece."""
    points = [point for piece in pieces for point in (*piece, (math.nan, math.nan))]
    return [step for step, _ in points], [value for _, value in points]


def _draw(axes: Any, curves: Mapping[str, Curve], measure: str, *, gaps: bool = True) -> None:
    """Draw curves. With `gaps`, break each where points are missing. Sums have no gaps."""
    for name, curve in curves.items():
        pieces = _pieces(curve) if gaps else [curve]
        # a line through one point cannot be seen
        lone = [piece for piece in pieces if len(piece) == 1]
        (line,) = axes.plot(*_columns(pieces), linewidth=1.5, label=name)
        if len(lone) == len(pieces):
            line.set(linestyle="", marker="o", markersize=4)  # the legend shows it too
        axes.plot(*_columns(lone), linestyle="", marker="o", markersize=4, color=line.get_color())
    if len(curves) > 1:
        axes.legend()
    axes.set_ylabel(measure)
    axes.grid(alpha=0.3)


def _mark(axes: Any, marks: Sequence[tuple[int, str]]) -> None:
    labelled = marks
    if len(marks) > _MARKS_NAMED:
        losses = [mark for mark in marks if _LOSS.search(mark[1])]
        labelled = [losses[index] for index in evenly(len(losses), _MARKS_NAMED)]
    for step, _ in marks:
        axes.axvline(step, color="grey", linestyle=":", linewidth=1)
    first, last = axes.get_xlim()
    taken = {"top": -math.inf, "bottom": -math.inf}  # right edge of the labels at each end
    # The same text twice at a step, as of a member that restarts, would only cover itself.
    times_marked = Counter(labelled)
    for step, text in sorted(times_marked, key=lambda mark: (mark[0], not _LOSS.search(mark[1]))):
        count = times_marked[step, text]
        times = f" ({count} times)" if count > 1 else ""
        position = (step - first) / (last - first)
        free = _free_places(position, taken, is_long=len(text + times) > _HALF_HEIGHT)
        # Leave out a label that would cover another one, unless it tells of lost steps.
        if not free and not _LOSS.search(text):
            continue
        side, ends = free[0] if free else ("right", ("top",))
        end = ends[0]
        for one in ends:
            taken[one] = max(taken[one], position + (_LABEL_WIDTH if side == "left" else 0.0))
        axes.annotate(
            f" {printable(text)}{times} ",
            (step, 1.0 if end == "top" else 0.0),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            va=end,
            ha=side,
            rotation=90,
            parse_math=False,
        )


def _free_places(
    position: float, taken: Mapping[str, float], *, is_long: bool
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the sides of a line, and ends of the panel, where a label would cover no other one.

    `position` and `taken` are fractions of the panel's width. A long label needs both ends.
    """
    ends: list[tuple[str, ...]] = [("top", "bottom")] if is_long else [("top",), ("bottom",)]
    starts = {"right": position - _LABEL_WIDTH, "left": position}
    return [
        (side, place)
        for place in ends
        for side, start in starts.items()
        if all(start >= taken[end] for end in place)
    ]


def _write(figure: Any, path: Path) -> None:
    """Raises OutputError, and ValueError for a suffix that names no kind of picture."""
    from matplotlib import pyplot

    kind = path.suffix.removeprefix(".") or "png"
    try:
        with warnings.catch_warnings(), output_file(path, _is_our_plot) as stream:
            # names may have characters that the font lacks
            warnings.filterwarnings("ignore", "Glyph")
            figure.tight_layout()
            figure.savefig(stream, format=kind, metadata=_METADATA.get(kind))
    finally:
        pyplot.close(figure)


def _is_our_plot(head: bytes) -> bool:
    return _MADE_BY.encode() in head


_BARS = "▁▂▃▄▅▆▇█"


def evenly(total: int, room: int) -> list[int]:
    """Return at most `room` indices below `total`, evenly spaced, with both ends."""
    count = min(room, total)
    return [index * (total - 1) // max(1, count - 1) for index in range(count)]


def sparkline(values: Sequence[float], low: float | None = None) -> str:
    """Return one bar per value, scaled between `low`, by default the lowest, and the highest."""
    if not values:
        return ""
    low = min(values) if low is None else low
    scale = (max(values) - low) or 1.0
    return "".join(_BARS[round((value - low) / scale * (len(_BARS) - 1))] for value in values)


def loss_line(curve: Sequence[tuple[int, float]], width: int) -> str:
    """Draw a (step, loss) curve as a line of `width` characters: steps, first loss, bars, last
    loss.

    Points that do not fit are left out evenly. The first and the last are always drawn.
    """
    if not curve:
        return "no loss yet"
    (first, begin) = curve[0]
    (last, end) = curve[-1]
    if first == last:
        return f"loss at step {first}: {end:.3f}"
    prefix = f"loss, steps {first} to {last}:  {begin:.3f} "
    suffix = f" {end:.3f}"
    indices = evenly(len(curve), max(2, width - len(prefix) - len(suffix)))
    return prefix + sparkline([curve[index][1] for index in indices]) + suffix


TABLES = (".csv", ".json")
_HEADER = ["curve", "step", "loss"]
_JSON_HEAD = '{"losses": '


def write_table(path: Path, curves: Mapping[str, Curve]) -> None:
    """Write the curves to a file of a type in TABLES. Raises OutputError."""
    if path.suffix == ".json":
        text = (
            f"{_JSON_HEAD}{json.dumps({name: list(curve) for name, curve in curves.items()})}}}\n"
        )
    else:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(_HEADER)
        writer.writerows(
            (name, step, loss) for name, curve in curves.items() for step, loss in curve
        )
        text = buffer.getvalue()
    with output_file(path, _is_our_table) as stream:
        stream.write(text.encode())


def _is_our_table(head: bytes) -> bool:
    return head.startswith((_JSON_HEAD.encode(), ",".join(_HEADER).encode()))
