"""Events as a table for spreadsheets: one row each, with a column for everything that any kind of event says.

Decided: the columns are the same for every file, so that tables can be put together; what is no number or text is JSON
in its cell; a text that a spreadsheet would take for a formula gets a quote before it, since texts come from strangers
too.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from typing import TextIO, get_args

import msgspec

from aftermath.watch.kinds import MEMBER_EVENTS
from aftermath.watch.reader import EventRecord, flat

_RUN = ("run", "run_owner", "run_created", "run_identity")
_FIRST = ("at", *_RUN, "member", "member_tier", "client", "kind", "t")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@cache
def columns() -> tuple[str, ...]:
    """The names of all columns."""
    said = {field.name for kind in get_args(MEMBER_EVENTS) for field in msgspec.structs.fields(kind)}
    return (*_FIRST, *sorted(said - set(_FIRST)))


class CsvTable:
    """Writes the columns' names, and then a row for each event it is called with."""

    def __init__(self, stream: TextIO) -> None:
        self._rows = csv.DictWriter(stream, columns(), lineterminator="\n")
        self._rows.writeheader()

    def __call__(self, told: EventRecord) -> None:
        self._rows.writerow({name: _cell(value) for name, value in flat(told).items()})


def _cell(value: object) -> object:
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
