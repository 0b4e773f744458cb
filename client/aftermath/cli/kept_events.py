"""What the commands about kept events share: which places, which kinds, how they are written out, what is said at the
end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from aftermath.base.errors import UsageError
from aftermath.cli.present import note

if TYPE_CHECKING:
    from aftermath.events.reader import EventReader, EventRecord, RunFilter

Places = Annotated[
    list[Path], typer.Argument(help="Directories that train --events-dir wrote, or one above them, or files of events.")
]
Kinds = Annotated[
    str | None, typer.Option("--kind", help="Only events of these kinds, with commas between them: trained,warning.")
]

OnlyRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="Use only this run's events. Give its run id, or its run_identity if several runs share the id.",
    ),
]

JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line, with all that was told.")]


def chosen(told: Iterable[EventRecord], kinds: str | None) -> Iterator[EventRecord]:
    """The events of these kinds, or all. Raises UsageError for a kind that does not exist."""
    from typing import get_args

    from aftermath.events.event_types import MEMBER_EVENTS

    if kinds is None:
        return iter(told)
    known = {str(kind.__struct_config__.tag): kind for kind in get_args(MEMBER_EVENTS)}
    names = [name.strip() for name in kinds.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"--kind {name}: there is no such kind of event", f"Kinds are {', '.join(sorted(known))}")
    wanted = tuple(known[name] for name in names)
    return (one for one in told if isinstance(one.event, wanted))


def printer(*, as_json: bool, everything: bool) -> Callable[[EventRecord], None]:
    """Prints events, each in one line."""
    from aftermath.events.text import EventLines

    return _print_json if as_json else EventLines(LineConsole(soft_wrap=True), everything=everything)


def _print_json(told: EventRecord) -> None:
    sys.stdout.write(json_line(told))
    sys.stdout.flush()


def json_line(told: EventRecord) -> str:
    """An event and who told it, as a line of JSON."""
    import msgspec

    from aftermath.events.printable import escaped_json
    from aftermath.events.reader import flat

    return escaped_json(msgspec.json.encode(flat(told)).decode()) + "\n"


def say_notes(reader: EventReader) -> None:
    """Say what could not be read."""
    for sentence in reader.notes():
        note(sentence)


def finish(reader: EventReader, places: list[Path], found: int, runs: RunFilter) -> None:
    """Say what could not be read, and which runs share an id. Raises NoEvents if no event was found."""
    from aftermath.events.reader import NoEvents

    say_notes(reader)
    if namesakes := runs.namesakes():
        note("these events are of several runs with the same run id:")
        for run in namesakes:
            note(f"  {run}")
    if not found:
        reader.check_readable()
        names = ", ".join(map(str, places))
        fix = "Name what a member was given as --events-dir; what train-local writes is lines of JSON, for jq"
        raise NoEvents(f"there are no such events in {names}", fix)


class LineConsole(Console):
    """A console that leaves it to the command what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Raise what rich was told."""
        raise BrokenPipeError
