"""Read event files back: complete lines, in order of time, of one run or of all, or as a CSV table.

Files may come from strangers. So lines have a size limit, and what cannot be read is skipped and
noted: half a last line, invalid lines, kinds of another version.
"""

from __future__ import annotations

import csv
import heapq
import json
import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, TextIO, get_args

import msgspec

from aftermath.base.errors import AftermathError
from aftermath.base.text import counted
from aftermath.events.event_files import SUFFIX, process_of
from aftermath.events.event_types import MEMBER_EVENTS, Event, MemberStarted, RunFound
from aftermath.events.printable import printable
from aftermath.events.stream import plain

MOST_LINE = 1 << 20
"""Maximum bytes of a line. The longest lines that a member writes have tens of thousands."""
# bytes to read from a file at once, which limits the memory per file
_FIRST_READ = 4096
_MOST_READ = 1 << 18


class NoEvents(AftermathError):
    """Raised if there are no events at the given path."""

    code = "no-events"


def unreadable(path: Path, error: OSError) -> NoEvents:
    """Return the error for a file or directory of events that could not be read."""
    fix = "Name another file, or copy it again"
    if isinstance(error, PermissionError):
        mode = "rx" if path.is_dir() else "r"
        fix = f"Allow this user to read it: chmod u+{mode} {shlex.quote(str(path))}"
    return NoEvents(f"cannot read {path}: {error.strerror}", fix)


class EventOrigin(msgspec.Struct, frozen=True):
    """The member and run that events come from."""

    run_id: str
    wallet: str
    tier: int
    version: str
    """The client's version."""
    owner: str = ""
    """The run's owner. Like the next two fields, empty before the process has found the run."""
    created: int = 0
    identity: str = ""


class EventRecord(msgspec.Struct, frozen=True):
    """An event, its origin, and its time by that machine's clock."""

    at: datetime
    origin: EventOrigin
    event: Event
    path: Path


class _Dated(msgspec.Struct):
    """The fields of a line besides its event. The origin only if several share a file (`flat`)."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    run: str | None = None
    member: str | None = None
    member_tier: int | None = None
    client: str | None = None
    run_owner: str = ""
    run_created: int = 0
    run_identity: str = ""

    def origin(self) -> EventOrigin | None:
        if (
            self.run is None
            or self.member is None
            or self.member_tier is None
            or self.client is None
        ):
            return None
        return EventOrigin(
            self.run,
            self.member,
            self.member_tier,
            self.client,
            owner=self.run_owner,
            created=self.run_created,
            identity=self.run_identity,
        )


_OF_LOCAL = b'"optimizer":'
"""In the first line of a training without a network."""
_decode_dated = msgspec.json.Decoder(_Dated)
_decode_event = msgspec.json.Decoder(MEMBER_EVENTS)


def flat(record: EventRecord) -> dict[str, object]:
    """Return one object with everything: what `events --out` writes and any reader reads back."""
    origin = record.origin
    origin_fields: dict[str, object] = {
        "run": origin.run_id,
        "member": origin.wallet,
        "member_tier": origin.tier,
        "client": origin.version,
    }
    if origin.identity:
        origin_fields |= {
            "run_owner": origin.owner,
            "run_created": origin.created,
            "run_identity": origin.identity,
        }
    return {
        "at": record.at.isoformat(timespec="milliseconds"),
        **origin_fields,
        **plain(record.event),
    }


class EventFile:
    """One event file, read incrementally."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = self._line = self._left = self._passed = self._first_passed = self._lost = 0
        self._origin: EventOrigin | None = None
        self._skipping = False
        self._local = False
        """Whether train-local wrote the file; its events are of other types."""
        self.failure: OSError | None = None

    def read(self) -> Iterator[EventRecord]:
        """Yield what was written since the last call, except an incomplete last line."""
        room = _FIRST_READ
        while True:
            try:
                chunk = self._chunk(room)
            except OSError as error:
                self.failure = error
                return
            self.failure = None
            complete = chunk.rfind(b"\n") + 1
            self._left = len(chunk) - complete
            self._offset += complete
            for line in chunk[:complete].split(b"\n")[:-1]:
                self._line += 1
                if self._skipping:  # the end of a line that was too long
                    self._skipping = False
                elif (record := self._parse(line)) is not None:
                    yield record
            if not complete and len(chunk) >= MOST_LINE:
                self._offset, self._left = self._offset + len(chunk), 0
                if not self._skipping:
                    self._skipping = True
                    self._pass_over(self._line + 1)
            elif not complete and len(chunk) < room:
                return
            room = min(room * 2, MOST_LINE if not complete else _MOST_READ)

    def notes(self) -> Iterator[str]:
        """Return sentences about what was not read."""
        if self.failure is not None:
            yield f"cannot read {self.path}: {self.failure.strerror}"
        if self._local:
            yield f"skipped {self.path}, which train-local wrote; draw it with plot"
        elif self._passed:
            where = (
                f"line {self._first_passed}"
                if self._passed == 1
                else f"from line {self._first_passed}"
            )
            yield (
                f"skipped {counted(self._passed, 'line')} of {self.path} ({where}), which this "
                "version cannot read"
            )
        if self._left:
            yield f"skipped the incomplete last line of {self.path}"
        if self._lost:
            yield f"the member could not write {counted(self._lost, 'event')} before {self.path}"

    def _chunk(self, room: int) -> bytes:
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self._offset:  # the name now belongs to another file
                self._offset = self._line = 0
            file.seek(self._offset)
            return file.read(room)

    def _parse(self, line: bytes) -> EventRecord | None:
        try:
            dated = _decode_dated.decode(line)
            event = _decode_event.decode(line)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            self._local = self._local or (self._line == 1 and _OF_LOCAL in line)
            self._pass_over(self._line)
            return None
        origin = dated.origin()
        if isinstance(event, MemberStarted):
            origin = origin or _origin_of(event)
            self._origin = origin
            if event.part:  # the first line of a file is not an event by itself
                self._lost += event.lost
                return None
        elif isinstance(event, RunFound) and origin is None and self._origin is not None:
            self._origin = msgspec.structs.replace(
                self._origin, owner=event.owner, created=event.created, identity=event.identity
            )
        origin = origin or self._origin
        if origin is None:
            self._pass_over(self._line)
            return None
        return EventRecord(dated.at, origin, event, self.path)

    def _pass_over(self, line: int) -> None:
        self._first_passed = self._first_passed or line
        self._passed += 1


def _origin_of(event: MemberStarted) -> EventOrigin:
    return EventOrigin(
        event.run_id,
        event.wallet,
        event.tier,
        event.version,
        owner=event.owner,
        created=event.created,
        identity=event.identity,
    )


class EventReader:
    """The events in files and directories. Raises NoEvents for a missing path unless it may come
    `later`.

    A directory holds `*.jsonl` files, directly or one level down. Events of one process keep the
    order in which they were written, even if its clock was set back. Events of different processes
    are merged by date. Only events that are needed for merging are in memory.
    """

    def __init__(self, places: Sequence[Path], *, later: bool = False) -> None:
        for path in places:
            if not later and not path.exists():
                raise NoEvents(
                    f"{path}: no such file or directory",
                    "Name the --events-dir of train, or an event file",
                )
        self._places = tuple(places)
        self._files: dict[Path, EventFile] = {}

    def read(self) -> Iterator[EventRecord]:
        """Return all unread events in order of time. Call it again for newer ones."""
        processes: dict[tuple[Path, str], list[EventFile]] = defaultdict(list)
        for path in self._paths():
            file = self._files.setdefault(path, EventFile(path))
            processes[path.parent, process_of(path)].append(file)
        return heapq.merge(*map(_in_turn, processes.values()), key=lambda record: record.at)

    def notes(self) -> list[str]:
        """Return sentences about what could not be read so far."""
        return [note for file in self._files.values() for note in file.notes()]

    def check_readable(self) -> None:
        """Raise NoEvents, with the fix, if a file or directory could not be read."""
        failures = {
            file.path: file.failure for file in self._files.values() if file.failure is not None
        }
        for place in self._places:
            try:
                next(iter(os.scandir(place)), None)
            except (NotADirectoryError, FileNotFoundError):
                continue
            except OSError as error:  # a search below it would silently find nothing
                failures[place] = error
        for path, failure in failures.items():
            raise unreadable(path, failure)

    def _paths(self) -> list[Path]:
        """Return each file once, and the files of a process in the order of writing."""
        paths: dict[Path, Path] = {}
        for root in self._places:
            candidates = (
                [*root.glob(f"*{SUFFIX}"), *root.glob(f"*/*{SUFFIX}")] if root.is_dir() else [root]
            )
            paths |= {path.resolve(): path for path in candidates if path.is_file()}
        return sorted(paths.values())


def _in_turn(files: Sequence[EventFile]) -> Iterator[EventRecord]:
    for file in files:
        yield from file.read()


@dataclass(frozen=True, slots=True)
class RunName:
    """A run as its members' events name it. `identity` is empty if they do not know it."""

    run_id: str
    owner: str
    created: int
    identity: str

    @classmethod
    def of(cls, origin: EventOrigin) -> RunName:
        return cls(origin.run_id, origin.owner, origin.created, origin.identity)

    def __str__(self) -> str:
        if not self.identity:
            return printable(f"{self.run_id} (its events do not say who owns it)")
        return printable(
            f"{self.run_id} of {self.owner}, created in slot {self.created}: --run {self.identity}"
        )


@dataclass
class RunFilter:
    """Passes events of one run, and remembers the runs it saw. `wanted` is a run id or an
    identity.
    """

    wanted: str | None = None
    seen: set[RunName] = field(default_factory=set)

    def __call__(self, records: Iterable[EventRecord]) -> Iterator[EventRecord]:
        for record in records:
            run = RunName.of(record.origin)
            if self.wanted is None or self.wanted in (run.run_id, run.identity):
                self.seen.add(run)
                yield record

    def namesakes(self) -> list[RunName]:
        """Return the runs that share their run id with another one, if any."""
        by_id: dict[str, list[RunName]] = defaultdict(list)
        for run in sorted(self.seen, key=lambda run: (run.run_id, run.created, run.owner)):
            if run.identity:  # events from before a process found its run have no identity
                by_id[run.run_id].append(run)
        return [run for runs in by_id.values() if len(runs) > 1 for run in runs]


_RUN = ("run", "run_owner", "run_created", "run_identity")
_FIRST = ("at", *_RUN, "member", "member_tier", "client", "kind", "t")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@cache
def columns() -> tuple[str, ...]:
    """Return the names of all columns."""
    names = {
        field.name for kind in get_args(MEMBER_EVENTS) for field in msgspec.structs.fields(kind)
    }
    return (*_FIRST, *sorted(names - set(_FIRST)))


class CsvTable:
    """Write the header, and then a row for each event.

    Columns are the same for every file, so that tables can be joined. Values that are neither
    number nor text are JSON. Text that a spreadsheet would read as a formula gets a leading quote,
    because strangers write texts too.
    """

    def __init__(self, stream: TextIO) -> None:
        self._rows = csv.DictWriter(stream, columns(), lineterminator="\n")
        self._rows.writeheader()

    def __call__(self, record: EventRecord) -> None:
        self._rows.writerow({name: _cell(value) for name, value in flat(record).items()})


def _cell(value: object) -> object:
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
