"""Plots as PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def loss_plot(path: Path, curve: Sequence[tuple[int, float]], marks: Sequence[tuple[int, str]], title: str) -> None:
    """Write loss over steps to `path`; `marks` are (step, text) events drawn as vertical lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    axes.plot([step for step, _ in curve], [loss for _, loss in curve], linewidth=1.5)
    for number, (step, text) in enumerate(marks):
        axes.axvline(step, color="grey", linestyle=":", linewidth=1)
        side = "left" if number % 2 else "right"  # of their lines by turns, so that two close marks stay readable
        axes.annotate(f" {text} ", (step, axes.get_ylim()[1]), fontsize=8, va="top", ha=side, rotation=90)
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
