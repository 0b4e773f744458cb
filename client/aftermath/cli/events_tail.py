"""`events tail`: what members told last, and what they tell now."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.kept_events import JsonLines, Kinds, OnlyRun, Places, chosen, printer, say_notes
from aftermath.cli.present import Result

_LOOK_AGAIN = 0.2  # seconds


@command("events tail", example="aftermath-solana events tail runs/mine/events --lines 5")
def events_tail(
    places: Places,
    kind: Kinds = None,
    run: OnlyRun = None,
    lines: Annotated[int, typer.Option(min=0, max=100_000, help="How many events of before are shown.")] = 20,
    json_output: JsonLines = False,
) -> Result:
    """Print the last events of members, and then those that come, until Ctrl-C.

    Files and directories of members that begin later are taken in when they are there.
    """
    from aftermath.events.reader import EventReader, RunFilter

    reader = EventReader(places)
    runs = RunFilter(run)
    show = printer(as_json=json_output, everything=kind is not None)
    try:
        for told in deque(chosen(runs(reader.read()), kind), maxlen=lines):
            show(told)
        while True:
            time.sleep(_LOOK_AGAIN)
            for told in chosen(runs(reader.read()), kind):
                show(told)
    except KeyboardInterrupt:  # the way to end it
        say_notes(reader)
    return Result(None, None)
