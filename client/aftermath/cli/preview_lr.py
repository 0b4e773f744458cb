"""`preview-lr`: the learning rate of every step, before anything is on chain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.present import Result, facts
from aftermath.events.plot import evenly, spark
from aftermath.rules.schedules import first_epoch_rate

POINTS = 1000  # of a long schedule, so many steps are printed as JSON and drawn
BARS = 60
ROWS = 10


@command("preview-lr", example="aftermath-solana preview-lr --config-path run.toml --plot rates.png")
def preview_lr(
    config_path: Annotated[Path, typer.Option("--config-path", help="A run's config file.")],
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw the rates into this PNG file.")] = None,
) -> Result:
    """Show the learning rate of every step that a config file means.

    It is the rate of a run that goes through without a pause; after one, the first steps of an epoch start low again
    (cold_start_warmup_steps).
    """
    from aftermath.config.document import load_config
    from aftermath.config.read import schedule_of
    from aftermath.owner.troubles import trouble_with_schedule

    config = load_config(config_path)
    schedule, total = schedule_of(config.llm.lr_schedule), config.config.total_steps
    cold = config.llm.cold_start_warmup_steps

    def rate(step: int) -> float:
        return first_epoch_rate(schedule, cold, step)

    curve = [(step, rate(step)) for step in _steps(total, POINTS)]
    if plot is not None:
        _draw(plot.expanduser(), curve, config_path)
    warning = trouble_with_schedule(schedule, total)
    data = {
        "schedule": schedule.kind.name.lower(),
        "total_steps": total,
        "cold_start_warmup_steps": cold,
        "highest": max(value for _, value in curve),
        "warnings": [warning] if warning else [],
        "plot": str(plot.expanduser()) if plot is not None else None,
        "rates": [{"step": step, "rate": value} for step, value in curve],
    }
    shown: dict[str, object] = {
        "schedule": schedule.kind.name.lower().replace("_", " "),
        f"steps 1 to {total}": spark([rate(step) for step in _steps(total, BARS)]),
        "rate": [f"{rate(step):.3e}  at step {step}" for step in _steps(total, ROWS)],
    }
    shown |= {"plot": plot.expanduser()} if plot is not None else {}
    return Result(data, facts(shown | ({"warning": warning} if warning else {})))


def _steps(total: int, room: int) -> list[int]:
    """At most `room` of the steps 1 to `total`."""
    return [1 + index for index in evenly(total, room)]


def _draw(path: Path, curve: list[tuple[int, float]], config_path: Path) -> None:
    """Write the plot. Raises UsageError for a name of another kind of file, OutputError if it cannot be written."""
    from aftermath.events.plot import step_plot

    try:
        step_plot(path, {"rate": curve}, [], str(config_path), "learning rate")
    except ValueError as error:
        raise UsageError(f"--plot {path} cannot be drawn: {error}", "Name a file that ends in .png") from None
