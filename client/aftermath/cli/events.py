"""`events`: print, follow or export the events that members kept."""

from __future__ import annotations

import io
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from aftermath.base.errors import UsageError
from aftermath.base.outputs import refuse_inputs
from aftermath.cli.command import command
from aftermath.cli.options import JsonLines
from aftermath.cli.present import Result, line_console, note, writing

if TYPE_CHECKING:
    from aftermath.events.reader import EventReader, EventRecord, RunFilter

Places = Annotated[
    list[Path],
    typer.Argument(
        help="Directories that train --events-dir wrote, a directory above them, or event files."
    ),
]
OnlyRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="Use only this run's events. Give its run id, or its run_identity if several runs share the id.",
    ),
]
FOLLOWED_LINES = 20
LOOK_AGAIN = 0.2  # seconds
ENDINGS = {".csv": True, ".jsonl": False, ".json": False}
"""Whether a file with this ending is a table."""
_EXPORTED = re.compile(rb'\{"at":"[^"]*","run":')
"""The start of an exported line. A member's own lines do not name the run."""


@command(
    "events", example="aftermath-solana events runs/mine/events --follow", until_interrupt=True
)
def events(
    places: Places,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="Use only events of these kinds, separated by commas: trained,warning."
        ),
    ] = None,
    run: OnlyRun = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Then print events as they are written, until Ctrl-C."),
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100_000,
            help="Number of last events to use. By default all; 20 with --follow.",
        ),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Replay at this multiple of real time. By default there are no pauses."
        ),
    ] = None,
    csv: Annotated[
        bool | None,
        typer.Option(
            "--csv/--jsonl",
            help="Write a table with a column per field, or one JSON object per line. By default text, or what the "
            "ending of --out says.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write: .csv is a table, anything else JSON lines.")
    ] = None,
    json_output: JsonLines = False,
) -> Result:
    """Print, follow or export the events of members.

    Merges the events of several members by date. Text without --kind omits kinds that only programs
    read. An exported row names the run, wallet, tier and client version, and this command reads
    exported lines again.
    """
    from aftermath.events.reader import EventReader, RunFilter

    _check_modes(follow=follow, speed=speed, csv=csv, out=out)
    if out is not None:
        refuse_inputs(out.expanduser(), places, "Name a file outside the input directories")
    reader = EventReader(places)
    runs = RunFilter(run)

    def matching_records() -> Iterator[EventRecord]:
        return _of_kinds(runs(reader.read()), kind)

    if follow:
        _follow(matching_records, _printer(as_json=json_output, everything=kind is not None), lines)
        say_notes(reader)
        return Result(None, None)
    records = matching_records() if lines is None else iter(deque(matching_records(), maxlen=lines))
    if out is not None and str(out) != "-":
        count = _export(
            out,
            records,
            lambda count: _finish(reader, places, count, runs),
            as_table=_as_table(csv, out),
        )
        data = {"events": count, "out": str(out), "notes": reader.notes()}
        return Result(data, f"{count:,} events written to {out}")
    if csv is not None or out is not None:
        with writing():
            printed = _write(sys.stdout, records, as_table=bool(csv))
    else:
        show = _printer(as_json=json_output, everything=kind is not None)
        printed = 0
        for record in _at_pace(records, speed):
            show(record)
            printed += 1
    _finish(reader, places, printed, runs)
    return Result(None, None)


def _check_modes(*, follow: bool, speed: float | None, csv: bool | None, out: Path | None) -> None:
    """Raise UsageError for options that exclude each other."""
    pace = {"--follow": follow, "--speed": speed is not None}
    form = {"--out": out is not None, "--csv": csv is True, "--jsonl": csv is False}
    options_used = [name for name, used in (pace | form).items() if used]
    if sum(pace.values()) > 1 or (any(pace.values()) and len(options_used) > 1):
        raise UsageError(
            f"{options_used[0]} and {options_used[1]} contradict each other",
            "Leave one of them out",
        )


def _follow(
    matching_records: Callable[[], Iterator[EventRecord]],
    show: Callable[[EventRecord], None],
    lines: int | None,
) -> None:
    """Show the last events, then new ones until Ctrl-C. Files and directories may appear later."""
    try:
        for record in deque(matching_records(), maxlen=FOLLOWED_LINES if lines is None else lines):
            show(record)
        while True:
            time.sleep(LOOK_AGAIN)
            for record in matching_records():
                show(record)
    except KeyboardInterrupt:  # Ctrl-C ends it
        return


def _of_kinds(records: Iterable[EventRecord], kinds: str | None) -> Iterator[EventRecord]:
    """Return the events of these kinds, or all. Raises UsageError for an unknown kind."""
    from typing import get_args

    from aftermath.events.event_types import MEMBER_EVENTS

    if kinds is None:
        return iter(records)
    known = {str(kind.__struct_config__.tag): kind for kind in get_args(MEMBER_EVENTS)}
    names = [name.strip() for name in kinds.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--kind {name} is not a kind of event",
                f"Choose from {', '.join(sorted(known))}",
            )
    event_classes = tuple(known[name] for name in names)
    return (record for record in records if isinstance(record.event, event_classes))


def _at_pace(records: Iterable[EventRecord], speed: float | None) -> Iterator[EventRecord]:
    previous = None
    for record in records:
        if speed is not None and previous is not None:
            time.sleep(max(0.0, (record.at - previous).total_seconds() / speed))
        previous = record.at
        yield record


def _printer(*, as_json: bool, everything: bool) -> Callable[[EventRecord], None]:
    """Return what prints an event in one line. `everything`: also kinds that only programs read."""
    from aftermath.events.text import EventLines

    return (
        _print_json if as_json else EventLines(line_console(soft_wrap=True), everything=everything)
    )


def _print_json(record: EventRecord) -> None:
    sys.stdout.write(_json_line(record))
    sys.stdout.flush()


def _json_line(record: EventRecord) -> str:
    """Return an event and its member as a line of JSON."""
    import msgspec

    from aftermath.events.printable import escaped_json
    from aftermath.events.reader import flat

    return escaped_json(msgspec.json.encode(flat(record)).decode()) + "\n"


def _as_table(csv: bool | None, out: Path) -> bool:
    """Return whether to write a table. Raises UsageError if the option and the file's ending
    contradict each other.
    """
    by_ending = ENDINGS.get(out.suffix.lower())
    if csv is None:
        return bool(by_ending)
    if by_ending not in (None, csv):
        flag = "--csv" if csv else "--jsonl"
        fitting = ".csv" if csv else ".jsonl"
        raise UsageError(
            f"{flag} contradicts the ending of --out {out}",
            f"Leave {flag} out, or name a file that ends in {fitting}",
        )
    return csv


def _export(
    out: Path, records: Iterable[EventRecord], finish: Callable[[int], None], *, as_table: bool
) -> int:
    """Write a file and return the number of events. If `finish` raises, an earlier file stays as it
    was.
    """
    from aftermath.base.outputs import output_file
    from aftermath.events.reader import columns

    def is_table(head: bytes) -> bool:
        return head.startswith(",".join(columns()).encode())

    def is_export(head: bytes) -> bool:
        return not head or _EXPORTED.match(head) is not None

    with output_file(out.expanduser(), is_table if as_table else is_export) as stream:
        file = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        count = _write(file, records, as_table=as_table)
        file.detach()  # flushes, and leaves the stream open so that output_file can sync it to disk
        finish(count)
    return count


def _write(stream: TextIO, records: Iterable[EventRecord], *, as_table: bool) -> int:
    from aftermath.events.reader import CsvTable

    write = CsvTable(stream) if as_table else lambda record: stream.write(_json_line(record))
    count = 0
    for record in records:
        write(record)
        count += 1
    return count


def say_notes(reader: EventReader) -> None:
    """Print what could not be read."""
    for sentence in reader.notes():
        note(sentence)


def _finish(reader: EventReader, places: list[Path], count: int, runs: RunFilter) -> None:
    """Print what could not be read, and which runs share an id. Raises NoEvents if there are no
    events.
    """
    from aftermath.events.reader import NoEvents

    say_notes(reader)
    if namesakes := runs.namesakes():
        note("these events belong to several runs with the same run id:")
        for run in namesakes:
            note(f"  {run}")
    if not count:
        reader.check_readable()
        names = ", ".join(map(str, places))
        fix = "Name a directory that train wrote (--events-dir); for the JSON lines of train-local use jq"
        raise NoEvents(f"there are no matching events in {names}", fix)
