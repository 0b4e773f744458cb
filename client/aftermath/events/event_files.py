"""Write a member's events to a directory: append-only files, a new one for every epoch.

Names are `DATE-PID-PART-start.jsonl` and then `DATE-PID-PART-epoch-N.jsonl`, so they sort by time.
No process writes into another one's file. Every file begins with `started`, which names run,
wallet, tier and client.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import msgspec

from aftermath.events.event_types import Event, MemberStarted, RunFound, StateChanged
from aftermath.events.stream import SinkPaused, Wall, line_of

SUFFIX = ".jsonl"
_NAME = re.compile(r"(?P<process>.+)-\d{5,}-(?:start|epoch-\d+)" + re.escape(SUFFIX))


def process_of(path: Path) -> str:
    """Return the common prefix of one process's files. For another file, return its name."""
    match = _NAME.fullmatch(path.name)
    return match["process"] if match else path.name


class EpochFiles:
    """The sink that writes event files. Raises OSError if the first file cannot be created.

    Each event is one append, so a killed process leaves at most half a line. Nothing is forced to
    disk: a power failure may lose the last seconds. A full disk costs events only. The next epoch
    tries again, and its file counts the lost ones.
    """

    def __init__(self, directory: Path, wall: Wall) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._wall = wall
        self._process = f"{wall():%Y%m%dT%H%M%S.%fZ}-{os.getpid()}"
        self._writing = threading.Lock()  # events come from several threads
        self._started: MemberStarted | None = None
        self._epoch: int | None = None
        self._part = self._lost = 0
        self._descriptor: int | None = None
        self._open("start")

    def __call__(self, event: Event) -> None:
        """Write an event. Raise SinkPaused for the first one that cannot be written."""
        with self._writing:
            try:
                self._take(event)
            except OSError as error:
                self._close()
                first, self._lost = self._lost == 0, self._lost + 1
                if first:
                    raise SinkPaused(
                        f"cannot write events to {self._directory}: {error.strerror or error}; "
                        "the next epoch tries again"
                    ) from None

    def _take(self, event: Event) -> None:
        if isinstance(event, MemberStarted):
            self._started = event
        if isinstance(event, RunFound) and self._started is not None:
            self._started = self._started.of_run(event)
        if isinstance(event, StateChanged) and event.epoch != self._epoch:
            self._turn_to(event)
        if self._descriptor is None:
            self._lost += 1
        else:
            self._append(event)

    def _turn_to(self, event: StateChanged) -> None:
        self._close()
        self._epoch, self._part = event.epoch, self._part + 1
        path = self._open(f"epoch-{event.epoch}")
        if self._started is None:
            return
        try:
            self._append(
                msgspec.structs.replace(self._started, t=event.t, part=self._part, lost=self._lost)
            )
        except OSError:
            path.unlink(missing_ok=True)  # remove it: a file without its first line is useless
            raise
        self._lost = 0

    def _append(self, event: Event) -> None:
        assert self._descriptor is not None
        unwritten = line_of(event, self._wall()).encode()
        while unwritten:  # a disk that fills up may store only a part
            unwritten = unwritten[os.write(self._descriptor, unwritten) :]

    def _open(self, suffix: str) -> Path:
        path = self._directory / f"{self._process}-{self._part:05d}-{suffix}{SUFFIX}"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        return path

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
