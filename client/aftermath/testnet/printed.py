"""What processes print, read from their logs as these grow.

Decided: of a log that grows faster than it is looked at, only the end is read; a line is there once it has its end, and
of one that a progress bar writes over and over what stands there last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

MOST_READ = 1 << 16
"""Bytes of a log that are read at once."""


class Printed:
    """Reads some logs, each under its name."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._read = dict.fromkeys(logs, 0)

    def read(self) -> Iterator[tuple[str, list[str]]]:
        """The lines that were printed since the last time, of those who printed any."""
        for name, log in self._logs.items():
            if lines := self._lines(name, log):
                yield name, lines

    def _lines(self, name: str, log: Path) -> list[str]:
        try:
            with log.open("rb") as file:
                size = file.seek(0, 2)
                begin = max(self._read[name], size - MOST_READ)
                file.seek(begin)
                chunk = file.read(MOST_READ)
        except OSError:  # it has not begun, or cannot be read: its tab stays as it is
            return []
        whole = chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) == MOST_READ else 0)
        self._read[name] = begin + whole
        lines = chunk[:whole].decode(errors="replace").split("\n")
        return [line.rstrip("\r").rpartition("\r")[2] for line in lines if line.strip()]
