"""Draw the pictures of docs/measurements.md from what was measured; `make docs` calls it.

    python benchmarks/plots.py docs/assets

A picture's description has the digest of its figures, so that a test notices an outdated picture.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learning_tables import has_curve, is_plotted, named
from quote import figures, sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BYTES_BAR = 0.0009
"""Target for the bytes per parameter and step: Covenant-72B (arXiv 2603.08163) sends 0.00091."""
LABELLED = 5
"""Arms of several members with a label, at each number of steps."""
CURVE_POINTS = 4
"""Fewer points than this are not joined by a line."""
LABEL_GAP = 0.035
"""Least distance between two labels, as a share of the height."""
UNEQUAL_ARMS = {
    "alone": "(a) tier 0 alone",
    "mixed": "(b) tiers 0, 1, 2",
    "three-large": "(c) tier 0,\nthree times",
    "small-only": "(d) tiers 1, 2,\nas many tokens",
    "smallest": "(e) tier 2,\nthree times",
}
"""Arms of unequal members, and the tiers that train in each."""
TRAINED = {
    "static": "top-k results, mean at the apply (static)",
    "static-muon": "dense results, Muon inside and at the apply (static-muon)",
}
KINDS = "kinds"
KIND = "0.2M-"
"""The kind whose arms cut tiers in different ways, and the prefix of their sizes."""
STRIPS = {
    "every_40": "width, drawn again\nevery 40 rounds",
    "every_10": "width, drawn again\nevery 10 rounds",
}
TIERS = {"0": "o", "1": "s", "2": "^"}
"""A marker for each tier."""


def digest(found: Any) -> str:
    """Return the digest of a picture's figures."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


@contextmanager
def picture(path: Path, found: Any, panels: int = 1) -> Iterator[Sequence[Axes]]:
    """Panels next to each other, written when they are drawn, with the figures' digest."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "aftermath"  # equal figures give equal files
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1,
        panels,
        figsize=(9 if panels == 1 else 6.5 * panels, 5.5),
        squeeze=False,
        sharey=True,
    )
    yield axes[0]
    for each in axes[0]:
        each.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None, "Description": digest(found)})
    pyplot.close(figure)


def draw(size: str, found: Mapping[str, Any], path: Path) -> None:
    """Draw the held-out loss by the steps of one machine.

    Arms of one machine have a colour and a legend entry. Of the arms of several members, the best
    ones at each number of steps have a label at the point; the others are grey.
    """
    with picture(path, found) as (axes,):
        axes.set(
            xscale="log",
            xlabel="steps of one machine",
            ylabel="held-out loss (nats per byte)",
            title=f"{named(size)}: one machine (dots), several members (crosses)",
        )
        several: dict[int, list[tuple[float, str]]] = {}
        for name, arm in found["arms"].items():
            points = [(end["steps"], end["held_out"]) for end in arm["ends"]]
            if arm["members"] == 1:
                line = "-" if len(points) >= CURVE_POINTS else ""
                axes.plot(*zip(*points, strict=True), marker="o", linestyle=line, label=name)
                continue
            for steps, loss in points:
                several.setdefault(steps, []).append((loss, f"{name}, {arm['members']} members"))
        for steps, losses in several.items():
            losses.sort()
            grey = losses[LABELLED:]
            axes.plot([steps] * len(grey), [loss for loss, _ in grey], "x", color="lightgrey")
            for loss, _ in losses[:LABELLED]:
                axes.plot([steps], [loss], "x", color="black")
        ticks = sorted({end["steps"] for arm in found["arms"].values() for end in arm["ends"]})
        axes.set_xticks(ticks, [f"{steps:,}" for steps in ticks])
        axes.minorticks_off()
        if several:  # room for the labels to the left of the points
            axes.set_xlim(left=ticks[0] * (ticks[0] / ticks[-1]) ** 0.35)
        for steps, losses in several.items():
            _label(axes, steps, losses[:LABELLED])
        axes.legend(fontsize=8)


def _label(axes: Axes, steps: int, losses: Sequence[tuple[float, str]]) -> None:
    """Write the names of points to their left, from the lowest point up, without overlap."""
    low, high = axes.get_ylim()
    height = -math.inf
    for loss, name in losses:
        height = max((loss - low) / (high - low), height + LABEL_GAP)
        axes.annotate(
            name,
            (steps, loss),
            xytext=(steps * 0.9, height),
            textcoords=("data", "axes fraction"),
            fontsize=7,
            ha="right",
            va="center",
            arrowprops={"arrowstyle": "-", "color": "grey", "linewidth": 0.5, "relpos": (1, 0.5)},
        )


def draw_bytes(size: str, found: Mapping[str, Any], path: Path) -> None:
    """Draw the held-out loss by the bytes that eight members send, and the targets of both."""
    with picture(path, found) as (axes,):
        for steps, own in found["bytes_at_loss"].items():
            points = own["points"]
            curve = [point for point in own["points"] if point["on_curve"]]
            (line,) = axes.plot(
                *_of(curve),
                marker="o",
                linestyle="-" if len(curve) >= CURVE_POINTS else "",
                label=f"{int(steps):,} steps: best loss at this size",
            )
            axes.plot(*_of(points), marker="x", linestyle="", color=line.get_color(), alpha=0.5)
            axes.axhline(
                own["bar"],
                linestyle=":",
                color=line.get_color(),
                label=f"{int(steps):,} steps: adamw-8x plus 1 %",
            )
            for point in curve:
                axes.annotate(
                    point["arm"],
                    (point["bytes"], point["held_out"]),
                    fontsize=7,
                    xytext=(4, 4),
                    textcoords="offset points",
                )
        axes.axvline(BYTES_BAR, linestyle="--", color="grey", label="bytes of Covenant-72B")
        axes.set(
            xscale="log",
            xlabel="bytes for each parameter and step",
            ylabel="held-out loss (nats per byte)",
            title=f"{named(size)}, eight members",
        )
        axes.margins(x=0.15)  # room for the labels to the right of the points
        axes.legend(fontsize=7)


def _of(points: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    return [point["bytes"] for point in points], [point["held_out"] for point in points]


def draw_unequal(found: Mapping[str, Any], path: Path) -> None:
    """Plot the held-out loss of every tier by the members that train with it, one panel for each
    way of training.
    """
    with picture(path, found, len(TRAINED)) as panels:
        for axes, (kind, title) in zip(panels, TRAINED.items(), strict=True):
            arms = found[kind]["0.2M"]["arms"]
            _by_tier(axes, {label: arms[name]["held_out"] for name, label in UNEQUAL_ARMS.items()})
            axes.set(title=title)


def draw_kinds(found: Mapping[str, Any], rolling: Mapping[str, Any], path: Path) -> None:
    """Plot the held-out loss of every tier with mixed members, for each way to cut tiers and for
    re-drawn strips.

    Re-drawn strips have only means, so they have no interval.
    """
    with picture(path, [found, rolling]) as (axes,):
        ways = {
            size.removeprefix(KIND): sizes["arms"]["mixed"]["held_out"]
            for size, sizes in found[KINDS].items()
        } | {
            label: {
                tier: {"mean": loss, "interval": math.nan} for tier, loss in rolling[name].items()
            }
            for name, label in STRIPS.items()
        }
        _by_tier(axes, ways)
        axes.set(title="tiers 0, 1 and 2 together, by how tiers are cut")


def _by_tier(axes: Axes, columns: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Plot a column for each label, with the tiers' means next to each other and their 95 %
    intervals.
    """
    for place, (tier, marker) in enumerate(TIERS.items()):
        shown = [
            (column, held[tier]) for column, held in enumerate(columns.values()) if tier in held
        ]
        axes.errorbar(
            [column + 0.15 * (place - 1) for column, _ in shown],
            [one["mean"] for _, one in shown],
            yerr=[one["interval"] for _, one in shown],
            fmt=marker,
            capsize=3,
            label=f"tier {tier}",
        )
    axes.set_xticks(range(len(columns)), list(columns), fontsize=8)
    axes.set(ylabel="held-out loss (nats per byte), 95 % intervals")
    axes.legend(fontsize=8)


def main() -> None:
    """Draw every size and the unequal members into a folder."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    unequal = figures("heterogeneity")
    for size, found in sizes().items():
        if is_plotted(found):
            draw(size, found, folder / f"experiments-{size}.svg")
        if has_curve(found):
            draw_bytes(size, found, folder / f"experiments-{size}-bytes.svg")
    draw_unequal(unequal, folder / "experiments-unequal.svg")
    draw_kinds(unequal, figures("rolling"), folder / "experiments-unequal-kinds.svg")


if __name__ == "__main__":
    main()
