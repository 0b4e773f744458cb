"""A member's progress as lines of text: for a terminal that is scrolled, a pipe, a log.

Decided: one line per event that a person wants to read, with the seconds since the start; the date is in the first
line. An error ends the process, which then says it on stderr.
"""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape

from aftermath.run.counted import counted
from aftermath.watch.events import Event, Wall
from aftermath.watch.phase import state_words
from aftermath.watch.printable import printable
from aftermath.watch.progress import Progress

_SENTENCES: dict[str, str] = {
    "started": "{date}: run {run_id}, tier {tier}, wallet {wallet}, aftermath {version}",
    "measuring": "measuring how fast this machine trains tier {tier} ({parameters:,} parameters): some seconds, "
    "{limit:.0f} at most",
    "measured": "this machine trains about {sequences} a minute",
    "joined": "joined as member {slot} with tier {tier}",
    "state": "epoch {epoch}: {state}; {progress}",
    "model": "the model is here, from {source}; the run is at step {step}",
    "remembered": "the optimizer goes on from what it knew when this member was stopped",
    "trained": "step {step}  loss {loss:.4f}  {tokens_per_sec:,.0f} tokens/s",
    "applied": "step {step}: applied {results}",
    "sample": "step {step}  the model goes on: {prompt}[bold]{text}[/bold]",
    "waiting": "waits for the next epoch",
    "dropped": "members {slots} did not deliver and are dropped",
    "checkpoint": "checkpoint of step {step} at {path}",
    "leaving": "stopping",
    "left": "left the run",
    "finished": "the run is finished: {steps}",
    "warning": "[yellow]{message}[/yellow]",
}


class ConsoleLines:
    """One line of text for each event a person wants to read."""

    def __init__(self, console: Console, wall: Wall) -> None:
        self._console, self._wall = console, wall
        self._progress = Progress()

    def __call__(self, event: Event) -> None:
        self._progress.take(event)
        sentence = _SENTENCES.get(event["kind"])
        if sentence is None:
            return
        fields = {name: escape(printable(v, keep="\n")) if isinstance(v, str) else v for name, v in event.items()}
        if fields.get("loss", 0.0) is None:
            fields["loss"] = math.nan
        if event["kind"] == "state":
            fields |= {"state": state_words(event["state"]), "progress": self._progress.words()}
        elif event["kind"] == "applied":
            fields["results"] = counted(event["results"], "result")
        elif event["kind"] == "measured":
            fields["sequences"] = counted(event["weight"], "sequence")
        elif event["kind"] == "finished":
            fields["steps"] = counted(event["step"], "step")
        elif event["kind"] == "started":
            fields["date"] = f"{self._wall():%Y-%m-%d %H:%M:%S %Z}"
        self._console.print(f"[dim]{event['t']:9.2f}s[/dim]  " + sentence.format_map(fields), highlight=False)
