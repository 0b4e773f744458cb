"""`events export`: what members told, in one file for other programs."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.kept_events import Kinds, OnlyRun, Places, chosen, finish, json_line
from aftermath.cli.present import Result, writing
from aftermath.events.stream import is_log

if TYPE_CHECKING:
    from aftermath.events.reader import EventRecord

ENDINGS = {".csv": True, ".jsonl": False, ".json": False}
"""Whether a file with this ending is a table."""


@command("events export", example="aftermath-solana events export runs/mine/events --out events.csv")
def events_export(
    places: Places,
    kind: Kinds = None,
    run: OnlyRun = None,
    csv: Annotated[
        bool | None,
        typer.Option(
            "--csv/--jsonl",
            help="Write a table with a column for everything, or one JSON object a line. "
            "By default the ending of --out decides: .csv is a table, anything else is lines.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; without it, the standard output.")] = None,
) -> Result:
    """Write what members told into one file, in the order of time.

    Every row has the run, wallet, tier and client version. A file of JSON lines can be read
    by these commands again; in a table, lists are JSON in their cells.
    """
    from aftermath.base.outputs import STANDARD_OUTPUT, output_file
    from aftermath.events.reader import EventReader, RunFilter

    as_table = _as_table(csv, out)
    reader = EventReader(places)
    runs = RunFilter(run)
    told = chosen(runs(reader.read()), kind)
    if out is None or str(out) == STANDARD_OUTPUT:
        with writing():
            written = _write(sys.stdout, told, as_table=as_table)
        finish(reader, places, written, runs)
        return Result(None, None)
    with output_file(out.expanduser(), _is_table if as_table else is_log) as stream:
        file = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        written = _write(file, told, as_table=as_table)
        file.detach()  # which flushes, and leaves the stream open to be forced to disk
        finish(reader, places, written, runs)
    return Result({"events": written, "out": str(out), "notes": reader.notes()}, f"{written:,} events written to {out}")


def _as_table(asked: bool | None, out: Path | None) -> bool:
    """Return whether to write a table. Raises UsageError if the option and the file's ending contradict each other."""
    by_ending = None if out is None else ENDINGS.get(out.suffix.lower())
    if asked is None:
        return bool(by_ending)
    if by_ending not in (None, asked):
        flag = "--csv" if asked else "--jsonl"
        fitting = ".csv" if asked else ".jsonl"
        raise UsageError(
            f"{flag} contradicts the ending of --out {out}",
            f"Leave {flag} out, or name a file that ends in {fitting}",
        )
    return asked


def _is_table(head: bytes) -> bool:
    from aftermath.events.reader import columns

    return head.startswith(",".join(columns()).encode())


def _write(stream: TextIO, events: Iterable[EventRecord], *, as_table: bool) -> int:
    from aftermath.events.reader import CsvTable

    row = CsvTable(stream) if as_table else lambda told: stream.write(json_line(told))
    written = 0
    for told in events:
        row(told)
        written += 1
    return written
