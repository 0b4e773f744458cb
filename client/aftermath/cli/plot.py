"""`plot`: a run's history from its members' events, or the losses of several local trainings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.base.outputs import STANDARD_OUTPUT, OutputError, refuse_inputs
from aftermath.cli.command import command
from aftermath.cli.events import OnlyRun, Places, say_notes
from aftermath.cli.present import CommandError, Result, facts

if TYPE_CHECKING:
    from aftermath.events.history import EventHistory
    from aftermath.events.plot import Curve
    from aftermath.events.reader import EventReader

SUFFIXES = (".png", ".svg", ".csv", ".json")


@command("plot", example="aftermath-solana plot runs/lab/adamw runs/lab/sparseloco --out loss.svg")
def plot(
    places: Places,
    run: OnlyRun = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Picture (.png, .svg) or numbers (.csv, .json) to write. - writes a PNG to standard output."
        ),
    ] = Path("loss.png"),
) -> Result:
    """Plot a run's history from its members' events, or compare local trainings.

    For a run, pass directories of members' events; one member's are enough. The picture shows loss
    by tier, bytes sent, epochs, and members that left or came back. For local trainings, pass their
    --out directories. One picture shows all losses.
    """
    from aftermath.events.reader import NoEvents
    from aftermath.lab.training_curves import trainings_in

    path = out.expanduser()
    if path.is_dir() and str(path) != STANDARD_OUTPUT:
        raise OutputError(
            f"--out {out} is a directory",
            f"Name a file in it, for example --out {out / 'loss.png'}",
        )
    if path.suffix not in SUFFIXES and str(path) != STANDARD_OUTPUT:
        raise UsageError(
            f"--out {out} must end in one of {', '.join(SUFFIXES)}",
            "Name another file, for example --out loss.png",
        )
    # A directory's inputs are JSON lines, which no picture or table replaces.
    files = [path_given for path_given in places if path_given.is_file()]
    refuse_inputs(path, files, "Name another file")
    for path_given in places:
        if not path_given.exists():
            raise NoEvents(
                f"{path_given}: no such file or directory",
                "Name the --events-dir of train, or the --out of train-local",
            )
    trainings = trainings_in(places)
    if not trainings:
        return _run(places, path, run)
    not_trainings = [path_given for path_given in places if not trainings_in([path_given])]
    if not_trainings:
        raise UsageError(
            f"{not_trainings[0]} is not an --out directory of train-local, but {trainings[0].parent} is",
            "Plot a run's events and local trainings with two commands",
        )
    return _trainings(trainings, path)


def _trainings(files: Sequence[Path], path: Path) -> Result:
    """Draw local trainings over each other."""
    from aftermath.events.plot import step_plot
    from aftermath.events.reader import NoEvents
    from aftermath.lab.training_curves import curves_of, read_trainings

    trainings = read_trainings(files)
    curves = curves_of(trainings)
    if not curves:
        raise NoEvents(f"{files[0].parent} has no steps yet", "Wait for the first step")
    title = trainings[0].name if len(trainings) == 1 else f"{len(trainings)} trainings"
    if not _table(path, curves):
        step_plot(path, curves, [], title)
    if str(path) == STANDARD_OUTPUT:
        return Result(None, None)
    summaries: list[dict[str, Any]] = [
        {
            "name": training.name,
            "steps": training.steps,
            "loss": training.loss[-1][1] if training.loss else None,
            "held_out_by_tier": {
                str(tier): curve[-1][1] for tier, curve in training.held_out.items()
            },
        }
        for training in trainings
    ]
    rows: dict[str, object] = {training["name"]: _loss_summary(training) for training in summaries}
    return Result({"plot": str(path), "trainings": summaries}, facts(rows | {"plot": path}))


def _loss_summary(training: Mapping[str, Any]) -> str:
    """Return a training's newest losses as text."""
    loss = "not finite" if training["loss"] is None else f"{training['loss']:.4f}"
    held_out = "".join(
        f", held out, tier {tier}: {value:.4f}"
        for tier, value in training["held_out_by_tier"].items()
    )
    return f"step {training['steps']}, loss {loss}{held_out}"


def _table(path: Path, curves: Mapping[str, Curve]) -> bool:
    """Write a table if the file's ending is of one. Return whether it is."""
    from aftermath.events.plot import TABLES, write_table

    if path.suffix not in TABLES:
        return False
    write_table(path, curves)
    return True


def _only_run(
    reader: EventReader, places: Sequence[Path], run_filter: str | None
) -> tuple[str, EventHistory]:
    """Return the run id and the history of the one run that was trained. Raises CommandError for
    several, NoEvents.
    """
    from aftermath.events.history import EventHistory
    from aftermath.events.reader import NoEvents, RunFilter, RunName

    histories: dict[RunName, EventHistory] = defaultdict(EventHistory)
    for record in RunFilter(run_filter)(reader.read()):
        histories[RunName.of(record.origin)].take(record)
    say_notes(reader)
    names = ", ".join(map(str, places))
    trained = {run: history for run, history in histories.items() if history.shares}
    if not trained:
        reader.check_readable()
        of_run = f" of run {run_filter}" if run_filter is not None else ""
        raise NoEvents(
            f"{names} has no training events{of_run}", "Name a member's --events-dir directory"
        )
    if len(trained) > 1:
        runs = "; ".join(sorted(map(str, trained)))
        raise CommandError(
            f"the events in {names} belong to several runs: {runs}", "Pass --run with one of them"
        )
    ((run, history),) = trained.items()
    return run.run_id, history


def _run(places: Sequence[Path], path: Path, run_filter: str | None) -> Result:
    """Draw the history of one run."""
    from aftermath.events.plot import run_plot
    from aftermath.events.reader import EventReader

    reader = EventReader(places)
    run_id, history = _only_run(reader, places, run_filter)
    losses = history.loss_by_tier()
    if not _table(path, {f"tier {tier}": curve for tier, curve in losses.items()}):
        run_plot(
            path, losses, history.sent_by_tier(), history.epochs, history.marks, f"run {run_id}"
        )
    if str(path) == STANDARD_OUTPUT:
        return Result(None, None)
    newest = {str(tier): curve[-1][1] for tier, curve in losses.items()}
    data = {
        "plot": str(path),
        "run_id": run_id,
        "steps": max(history.shares),
        "epochs": len(history.epochs),
        "loss_by_tier": newest,
        "marks": [{"step": step, "what": text} for step, text in history.marks],
        "notes": reader.notes(),
    }
    rows: dict[str, object] = {
        "run": run_id,
        "steps": max(history.shares),
        "epochs": len(history.epochs),
    }
    rows["newest loss"] = [f"tier {tier}: {loss:.4f}" for tier, loss in newest.items()]
    if history.marks:
        rows["on the way"] = [f"step {step}: {text}" for step, text in history.marks]
    return Result(data, facts(rows | {"plot": path}))
