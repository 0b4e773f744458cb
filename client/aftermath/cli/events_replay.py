"""`events replay`: what members told, from the first event to the last."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.kept_events import JsonLines, Kinds, OnlyRun, Places, chosen, finish, printer
from aftermath.cli.present import Result

if TYPE_CHECKING:
    from aftermath.events.reader import EventRecord


@command("events replay", example="aftermath-solana events replay runs/mine/events --kind trained,dropped --speed 60")
def events_replay(
    places: Places,
    kind: Kinds = None,
    run: OnlyRun = None,
    speed: Annotated[
        float | None, typer.Option(min=0.001, help="How many times as fast as it happened; without it all at once.")
    ] = None,
    json_output: JsonLines = False,
) -> Result:
    """Print what members told, in the order of time.

    Events of several members are put together by their dates. Without --kind those are shown that a person wants to
    read; with it, or as JSON, all of these kinds.
    """
    from aftermath.events.reader import EventReader, RunFilter

    reader = EventReader(places)
    runs = RunFilter(run)
    show, shown = printer(as_json=json_output, everything=kind is not None), 0
    for told in _at_pace(chosen(runs(reader.read()), kind), speed):
        show(told)
        shown += 1
    finish(reader, places, shown, runs)
    return Result(None, None)


def _at_pace(events: Iterable[EventRecord], speed: float | None) -> Iterator[EventRecord]:
    before = None
    for told in events:
        if speed is not None and before is not None:
            time.sleep(max(0.0, (told.at - before).total_seconds() / speed))
        before = told.at
        yield told
