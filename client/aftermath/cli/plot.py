"""`plot`: a run's history, from the events of its members."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.base.outputs import STANDARD_OUTPUT
from aftermath.cli.command import command
from aftermath.cli.kept_events import Places, say_notes
from aftermath.cli.present import CommandError, Result, facts

SUFFIXES = (".png", ".svg")


@command("plot", example="aftermath-solana plot runs/mine/events --out loss.svg")
def plot(
    places: Places,
    out: Annotated[
        Path, typer.Option(help="Picture to write, .png or .svg; - writes a PNG to standard output.")
    ] = Path("loss.png"),
) -> Result:
    """Draw a run's history from its members' events: loss by tier, bytes, epochs, who went and came back.

    One member's events are enough; with those of all, the loss is over everybody's shares.
    """
    from aftermath.watch.history import History
    from aftermath.watch.plot import run_plot
    from aftermath.watch.reader import EventReader, NoEvents

    path = out.expanduser()
    to_stdout = str(path) == STANDARD_OUTPUT
    if path.suffix not in SUFFIXES and not to_stdout:
        raise UsageError(f"{out} is no picture that can be drawn", f"Name a file that ends in {' or '.join(SUFFIXES)}")
    reader, history = EventReader(places), History()
    for told in reader.read():
        history.take(told)
    say_notes(reader)
    names = ", ".join(map(str, places))
    if not history.shares:
        raise NoEvents(f"nobody tells of a trained step in {names}", "Name what a member was given as --events-dir")
    if len(history.runs) > 1:
        runs = ", ".join(sorted(history.runs))
        raise CommandError(f"the events in {names} are of several runs: {runs}", "Name the places of one of them")
    losses = history.loss_by_tier()
    (run_id,) = history.runs
    run_plot(path, losses, history.sent_by_tier(), history.epochs, history.marks, f"run {run_id}")
    if to_stdout:
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
    shown: dict[str, object] = {"run": run_id, "steps": max(history.shares), "epochs": len(history.epochs)}
    shown["newest loss"] = [f"tier {tier}: {loss:.4f}" for tier, loss in newest.items()]
    if history.marks:
        shown["on the way"] = [f"step {step}: {text}" for step, text in history.marks]
    return Result(data, facts(shown | {"plot": path}))
