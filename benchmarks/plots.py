"""Draws the pictures of docs/experiments.md from what was measured; `make docs` calls it.

    python benchmarks/plots.py docs

A picture says in its description from which figures it was drawn, so that a test sees when it is out of date.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quote import figures, has_curve

BYTES_BAR = 0.0009
"""Bytes for each parameter and step that issue and field aim at: Covenant-72B (arXiv 2603.08163) has 0.00091."""


def digest(found: Mapping[str, Any]) -> str:
    """Of the figures of a size."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def draw(size: str, found: Mapping[str, Any], path: Path) -> None:
    """Held-out loss by the steps of a machine: curves alone, and a mark for every arm of several members."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "aftermath"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    for name, arm in found["arms"].items():
        points = [(end["steps"], end["held_out"]) for end in arm["ends"]]
        alone, marker = arm["members"] == 1, "o" if arm["members"] == 1 else "x"
        label = name if alone else f"{name}, {arm['members']} members"
        axes.plot(*zip(*points, strict=True), marker=marker, linestyle="-" if alone else ":", label=label)
    axes.set(
        xscale="log", xlabel="steps of a machine", ylabel="held-out loss (nats per byte)", title=f"{size} parameters"
    )
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None, "Description": digest(found)})
    pyplot.close(figure)


def draw_bytes(size: str, found: Mapping[str, Any], path: Path) -> None:
    """Held-out loss by the bytes that eight members send, for every length of a run, with the bars they are held to."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "aftermath"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    for steps, own in found["bytes_at_loss"].items():
        points, curve = own["points"], [point for point in own["points"] if point["on_curve"]]
        (line,) = axes.plot(*_of(curve), marker="o", label=f"{int(steps):,} steps: the least loss for so many bytes")
        axes.plot(*_of(points), marker="x", linestyle="", color=line.get_color(), alpha=0.5)
        axes.axhline(own["bar"], linestyle=":", color=line.get_color(), label=f"{int(steps):,} steps: adamw-8x and 1 %")
        for point in curve:
            axes.annotate(
                point["arm"], (point["bytes"], point["held_out"]), fontsize=7, xytext=(4, 4), textcoords="offset points"
            )
    axes.axvline(BYTES_BAR, linestyle="--", color="grey", label="as few as Covenant-72B")
    axes.set(
        xscale="log",
        xlabel="bytes for each parameter and step",
        ylabel="held-out loss (nats per byte)",
        title=f"{size} parameters, eight members",
    )
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None, "Description": digest(found)})
    pyplot.close(figure)


def _of(points: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    return [point["bytes"] for point in points], [point["held_out"] for point in points]


def main() -> None:
    """Draw every size into a folder."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for size, found in figures("worth").items():
        draw(size, found, Path(sys.argv[1]) / f"experiments-{size}.svg")
        if has_curve(found):
            draw_bytes(size, found, Path(sys.argv[1]) / f"experiments-{size}-bytes.svg")


if __name__ == "__main__":
    main()
