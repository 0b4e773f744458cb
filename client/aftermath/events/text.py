"""Events as sentences in rich's markup, with strangers' text made printable."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from aftermath.base.text import counted
from aftermath.events import event_types
from aftermath.events.printable import printable
from aftermath.events.progress import Progress, span, state_text
from aftermath.events.reader import EventOrigin, EventRecord
from aftermath.events.stream import plain

LOADING = "loading PyTorch…"
_SENTENCES: dict[type[event_types.Event], str] = {
    event_types.MemberStarted: "run {run_id}, tier {tier}, {key} {wallet}, aftermath {version}",
    event_types.Loading: LOADING,
    event_types.Compiling: "compiling kernels for this machine: half a minute or more, this once",
    event_types.Kernels: "using {by}",
    event_types.Measuring: "benchmarking tier {tier} ({parameters:,} parameters): "
    "up to {limit:.0f} s once the model is made",
    event_types.SpeedMeasured: "this machine {trains} a minute",
    event_types.Joined: "signed up for the next epoch (seat {seat}, tier {tier})",
    event_types.StateChanged: "epoch {epoch}{last}: {state}; {progress}",
    event_types.RoundStarted: "epoch {epoch}: training; {progress}",
    event_types.ModelReady: "loaded the model from {source}; the run is at step {step}",
    event_types.OptimizerRestored: "the optimizer continues from its state when this member was stopped",
    event_types.ShareTrained: "step {step}  loss {loss:.4f}  {tokens_per_sec:,.0f} tokens/s",
    event_types.Applied: "step {step}: applied {results}",
    event_types.Sample: "step {step}  the model continues: {prompt}[bold]{text}[/bold]",
    event_types.Evaluated: "step {step}  {task}: {metric} {value:.4f} of {docs} questions",
    event_types.Waiting: "{waits}",
    event_types.Audited: "audited seat {seat}, round {height}: {verdict}; {why}",
    event_types.CaseOpened: "seat {auditor} disputes the result of seat {seat} in round {height}",
    event_types.CaseDecided: "the jury decided about seat {seat}, round {height}: seat {loser} is ejected",
    event_types.Ejected: "the member in seat {seat} signed two results of round {height} and is ejected",
    event_types.Dropped: "{members} did not deliver and {are} dropped",
    event_types.Kicked: "wallet {wallet} (seat {seat}) was {kicked} by an authority of the run",
    event_types.Rewound: "the run went back from step {before} to step {step} (a rewind or an undone epoch)",
    event_types.CheckpointWritten: "checkpoint of step {step} at {path}",
    event_types.Leaving: "stopping{how}",
    event_types.Left: "left the run",
    event_types.Stopped: "saved step {step} in {path}; {use}",
    event_types.RunFinished: "the run is finished: {steps}{model}",
    event_types.Warning: "[yellow]{message}[/yellow]",
    event_types.Error: "[red]ends with an error: {message}[/red]",
}


class Sentences:
    """Builds the sentences of one member, and follows its run's progress."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._signed_up: tuple[int | None, int] | None = None
        """Seat and tier of the newest line about the next epoch, which is printed once."""

    def of(self, event: event_types.Event) -> str | None:
        """Return an event's sentence, or None for events that only logs need."""
        self._progress.take(event)
        sentence = _SENTENCES.get(type(event))
        if self._is_repeated_sign_up(event) or sentence is None:
            return None
        if isinstance(event, event_types.RoundStarted) and event.height:
            return None  # later rounds have lines of their own
        if isinstance(event, event_types.Audited) and event.verdict != "mismatch":
            return None
        if isinstance(event, event_types.Applied) and not event.results:
            return f"round {event.height} did not count: too few results were confirmed in time"
        values = msgspec.structs.asdict(event)
        fields = {
            name: escape(printable(v, keep="\n")) if isinstance(v, str) else v
            for name, v in values.items()
        }
        if isinstance(event, event_types.StateChanged | event_types.RoundStarted):
            fields["progress"] = self._progress.text()
        if isinstance(event, event_types.StateChanged):
            fields["state"] = escape(state_text(printable(event.state)))
            fields["last"] = " (the last)" if event.last else ""
            if event.state == "FINISHED":
                return f"{fields['state']}; {fields['progress']}"
        elif (own_fields := _OWN_FIELDS.get(type(event))) is not None:
            fields |= own_fields(event, fields)
        return sentence.format_map(fields)

    def _is_repeated_sign_up(self, event: event_types.Event) -> bool:
        """Return whether the member signs up again, which it does to declare a new weight."""
        if isinstance(event, event_types.Joined):
            place = (event.seat, event.tier)
            repeated = place == self._signed_up
            self._signed_up = place
            return repeated
        begins = isinstance(event, event_types.StateChanged) and event.state == "WARMUP"
        if begins or isinstance(event, event_types.Kicked):
            self._signed_up = None
        return False


Fields = Mapping[str, Any]
"""The values of an event's fields by name, with text escaped for rich."""


def _waiting_fields(event: event_types.Waiting, _: Fields) -> Fields:
    running = f"epoch {event.epoch - 1}" if event.epoch else "the epoch"
    if event.leaves:
        waits = f"this member leaves: {running} is the last and began without it (the owner adds steps with reopen)"
    elif event.ends_in is not None:
        waits = (
            f"waiting for epoch {event.epoch}; {running} makes no more steps and ends in {span(event.ends_in)} "
            "at the latest"
        )
    else:
        waits = f"waiting for epoch {event.epoch}; {running} has begun without this member"
    return {"waits": waits}


def _model_ready_fields(event: event_types.ModelReady, fields: Fields) -> Fields:
    if event.checkpoint_step in (None, event.step):
        return {}
    return {"source": f"{fields['source']} of step {event.checkpoint_step:,}"}


def _kernels_fields(event: event_types.Kernels, fields: Fields) -> Fields:
    compiled = event.missing is None
    return {"by": "compiled CPU kernels" if compiled else f"PyTorch kernels: {fields['missing']}"}


def _dropped_fields(event: event_types.Dropped, _: Fields) -> Fields:
    seats = ", ".join(map(str, event.seats))
    several = len(event.seats) > 1
    return {
        "members": f"the member{'s' * several} in seat{'s' * several} {seats}",
        "are": "are" if several else "is",
    }


def _speed_fields(event: event_types.SpeedMeasured, _: Fields) -> Fields:
    # A machine of unknown speed also declares the minimum weight, so do not show a speed.
    least = event.weight <= 1
    return {
        "trains": f"{'declares' if least else 'trains about'} {counted(event.weight, 'sequence')}"
    }


def _stopped_fields(event: event_types.Stopped, _: Fields) -> Fields:
    if event.continues:
        how = "start the same command again within 24 hours"
        return {"use": f"{how}, and the run continues from it"}
    return {"use": "this is only a copy; the run does not continue from it"}


def _message_fields(_: event_types.Event, fields: Fields) -> Fields:
    return {"message": fields["message"].replace("\n", "\n    ")}  # a fix has its own line


_OWN_FIELDS: Mapping[type[event_types.Event], Callable[[Any, Fields], Fields]] = {
    event_types.Waiting: _waiting_fields,
    event_types.ModelReady: _model_ready_fields,
    event_types.Kernels: _kernels_fields,
    event_types.Dropped: _dropped_fields,
    event_types.SpeedMeasured: _speed_fields,
    event_types.Stopped: _stopped_fields,
    event_types.Warning: _message_fields,
    event_types.Error: _message_fields,
    event_types.ShareTrained: lambda event, _: {"loss": math.nan} if event.loss is None else {},
    event_types.Applied: lambda event, _: {"results": counted(event.results, "result")},
    event_types.Kicked: lambda event, _: {"kicked": "barred" if event.barred else "removed"},
    event_types.Leaving: lambda event, _: {
        "how": ", saving the model first" if event.saves else ""
    },
    event_types.RunFinished: lambda event, fields: {
        "steps": counted(event.step, "step"),
        "model": _model_of(event, fields["checkpoint"]),
    },
}
"""Fields of sentences that an event does not have itself, or not in this form."""


def _model_of(event: event_types.RunFinished, place: object) -> str:
    """Return where the model of a finished run is, as the end of a sentence."""
    if not event.checkpoint:
        return ""
    saved_step = event.step if event.checkpoint_step is None else event.checkpoint_step
    if saved_step >= event.step and event.elsewhere:
        return f"; another member saved the model on its machine, in {place}: ask the run's owner for it"
    if saved_step >= event.step:
        return f"; the model is in {place}"
    if event.elsewhere:
        place = f"{place} on the machine of the member that saved it"
    others = (
        f"steps {saved_step + 1:,} to {event.step:,} are"
        if event.step > saved_step + 1
        else f"step {event.step:,} is"
    )
    return f"; the newest checkpoint is of step {saved_step:,}, in {place}; {others} in none"


def in_full(event: event_types.Event) -> str:
    """Return an event without a sentence in full: its kind and all its fields."""
    fields = {name: value for name, value in plain(event).items() if name not in ("kind", "t")}
    shown = ", ".join(f"{name} {value}" for name, value in fields.items())
    return escape(printable(f"{type(event).__struct_config__.tag}: {shown}"))


_SHOWN = 8
"""Characters of a wallet that tell members apart."""


def short(origin: EventOrigin) -> str:
    """Return a member's short name."""
    return f"{printable(origin.wallet)[:_SHOWN]} tier {origin.tier}"


class EventLines:
    """Print one line for each event of interest, or with `everything` for every event."""

    def __init__(self, console: Console, *, everything: bool) -> None:
        self._console = console
        self._everything = everything
        self._sentences: dict[EventOrigin, Sentences] = defaultdict(Sentences)

    def __call__(self, record: EventRecord) -> None:
        sentence = self._sentences[record.origin].of(record.event)
        if sentence is None and self._everything:
            sentence = in_full(record.event)
        if sentence is not None:
            begin = f"[dim]{record.at:%Y-%m-%d %H:%M:%S}  {escape(short(record.origin)):{_SHOWN + 7}}[/dim]"
            self._console.print(f"{begin}  {sentence}", highlight=False, emoji=False)
