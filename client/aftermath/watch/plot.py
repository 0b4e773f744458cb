"""Plots as PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[int, float]]
LOSS = "loss (nats per token)"


def step_plot(
    path: Path, curves: Mapping[str, Curve], marks: Sequence[tuple[int, str]], title: str, measure: str = LOSS
) -> None:
    """Write what is measured over steps to `path`, named if there are several; `marks` are (step, text), as vertical
    lines.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for name, curve in curves.items():
        dots = "o" if len(curve) == 1 else None  # a line through one point cannot be seen
        axes.plot([step for step, _ in curve], [loss for _, loss in curve], linewidth=1.5, label=name, marker=dots)
    if len(curves) > 1:
        axes.legend()
    for number, (step, text) in enumerate(marks):
        axes.axvline(step, color="grey", linestyle=":", linewidth=1)
        side = "left" if number % 2 else "right"  # of their lines by turns, so that two close marks stay readable
        axes.annotate(f" {text} ", (step, axes.get_ylim()[1]), fontsize=8, va="top", ha=side, rotation=90)
    axes.set(xlabel="step", ylabel=measure, title=title)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, format=None if path.suffix else "png")  # it would add a suffix, and write elsewhere
    pyplot.close(figure)
