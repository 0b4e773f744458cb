"""What each event says to a person, as one sentence in rich's markup; text of strangers is made printable."""

from __future__ import annotations

import math

import msgspec
from rich.markup import escape

from aftermath.base.counted import counted
from aftermath.watch import kinds
from aftermath.watch.events import plain
from aftermath.watch.phase import state_words
from aftermath.watch.printable import printable
from aftermath.watch.progress import Progress

LOADING = "loading PyTorch…"
_SENTENCES: dict[type[kinds.Event], str] = {
    kinds.Started: "run {run_id}, tier {tier}, {key} {wallet}, aftermath {version}",
    kinds.Loading: LOADING,
    kinds.Compiling: "compiling kernels for this machine: half a minute or more, this once",
    kinds.Kernels: "using {by}",
    kinds.Measuring: "benchmarking tier {tier} ({parameters:,} parameters): up to {limit:.0f} s once the model is made",
    kinds.Measured: "this machine {trains} a minute",
    kinds.Joined: "signed up for the next epoch (seat {seat}, tier {tier})",
    kinds.State: "epoch {epoch}{last}: {state}; {progress}",
    kinds.Round: "epoch {epoch}: training; {progress}",
    kinds.Model: "the model is here, from {source}; the run is at step {step}",
    kinds.Remembered: "the optimizer continues from its state when this member was stopped",
    kinds.Trained: "step {step}  loss {loss:.4f}  {tokens_per_sec:,.0f} tokens/s",
    kinds.Applied: "step {step}: applied {results}",
    kinds.Sample: "step {step}  the model continues: {prompt}[bold]{text}[/bold]",
    kinds.Evaluated: "step {step}  {task}: {metric} {value:.4f} of {docs} questions",
    kinds.Waiting: "{waits}",
    kinds.Ejected: "member {seat} signed two results of round {height} and is ejected",
    kinds.Dropped: "members {seats} did not deliver and are dropped",
    kinds.Kicked: "member {seat}, wallet {wallet}, was {kicked} by an authority of the run",
    kinds.Rewound: "the owner has taken the run from step {before} to step {step}",
    kinds.Checkpoint: "checkpoint of step {step} at {path}",
    kinds.Leaving: "stopping{how}",
    kinds.Left: "left the run",
    kinds.Stopped: "saved step {step} in {path}; {use}",
    kinds.Finished: "the run is finished: {steps}{model}",
    kinds.Warning: "[yellow]{message}[/yellow]",
    kinds.Error: "[red]ends with an error: {message}[/red]",
}


class Sentences:
    """The sentences of one member, which knows how far its run is."""

    def __init__(self) -> None:
        self._progress = Progress()

    def of(self, event: kinds.Event) -> str | None:
        """What a person wants to read of it; None for the many events of every round that are for later."""
        self._progress.take(event)
        sentence = _SENTENCES.get(type(event))
        if sentence is None or (isinstance(event, kinds.Round) and event.height):  # each has its own lines
            return None
        said = msgspec.structs.asdict(event)
        fields = {name: escape(printable(v, keep="\n")) if isinstance(v, str) else v for name, v in said.items()}
        if isinstance(event, kinds.Trained) and event.loss is None:
            fields["loss"] = math.nan
        elif isinstance(event, kinds.State):
            fields |= {"state": escape(state_words(printable(event.state))), "progress": self._progress.words()}
            fields["last"] = " (the last)" if event.last else ""
        elif isinstance(event, kinds.Waiting):
            running = f"epoch {event.epoch - 1}" if event.epoch else "the epoch"
            fields["waits"] = f"waiting for epoch {event.epoch}; {running} has begun without this member"
            if event.leaves:
                fields["waits"] = (
                    f"this member leaves: {running} is the last and began without it (the owner adds steps with reopen)"
                )
        elif isinstance(event, kinds.Round):
            fields["progress"] = self._progress.words()
        elif isinstance(event, kinds.Applied):
            fields["results"] = counted(event.results, "result")
            if not event.results:
                return f"round {event.height}: no result counted, so it is not a step"
        elif isinstance(event, kinds.Kernels):
            fields["by"] = "compiled CPU kernels" if event.missing is None else f"PyTorch kernels: {fields['missing']}"
        elif isinstance(event, kinds.Kicked):
            fields["kicked"] = "barred" if event.barred else "removed"
        elif isinstance(event, kinds.Measured):
            # A machine of unknown speed declares the least weight too, so do not claim a speed.
            least = event.weight <= 1
            fields["trains"] = f"{'declares' if least else 'trains about'} {counted(event.weight, 'sequence')}"
        elif isinstance(event, kinds.Warning | kinds.Error):
            fields["message"] = fields["message"].replace("\n", "\n    ")  # a fix, which has a line of its own
        elif isinstance(event, kinds.Leaving):
            fields["how"] = ", saving the model first" if event.saves else ""
        elif isinstance(event, kinds.Stopped):
            use = "start the same command again and the run continues from it"
            fields["use"] = use if event.goes_on else "this is only a copy; the run does not continue from it"
        elif isinstance(event, kinds.Finished):
            fields["steps"] = counted(event.step, "step")
            fields["model"] = _model_of(event, fields["checkpoint"])
        return sentence.format_map(fields)


def _model_of(event: kinds.Finished, place: object) -> str:
    """Return where the model of a finished run is, as the end of a sentence."""
    if not event.checkpoint:
        return ""
    kept = event.step if event.checkpoint_step is None else event.checkpoint_step
    if kept >= event.step:
        return f"; the model is in {place}"
    others = f"steps {kept + 1:,} to {event.step:,} are" if event.step > kept + 1 else f"step {event.step:,} is"
    return f"; the newest checkpoint is of step {kept:,}, in {place}; {others} in none"


def in_full(event: kinds.Event) -> str:
    """An event of which there is no sentence: its kind, and all that it says."""
    said = {name: value for name, value in plain(event).items() if name not in ("kind", "t")}
    shown = ", ".join(f"{name} {value}" for name, value in said.items())
    return escape(printable(f"{type(event).__struct_config__.tag}: {shown}"))
