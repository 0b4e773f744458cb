"""A terminal for tests with a process in the foreground, as a shell would start it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

PATIENCE = 240.0
"""Seconds: a deadline for broken code, not an expectation."""


class Terminal:
    """A process on a terminal of 80 by 24, and its output. Use it as a context manager."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        patience: float = PATIENCE,
        **options: Any,
    ) -> None:
        self._patience = patience
        self._closed = False
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._theirs = theirs
        self.usual = self.modes()
        self.output = ""

        def foreground() -> None:
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs} | options
        env = {**os.environ, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(command, env=env, preexec_fn=foreground, **streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if not self._closed:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        self._closed = True
        os.close(self._ours)
        os.close(self._theirs)

    def modes(self) -> list[Any]:
        """Return the terminal's input modes."""
        return termios.tcgetattr(self._theirs)

    def press(self, keys: str) -> None:
        """Press keys like a user."""
        os.write(self._ours, keys.encode())

    def until(self, true: Callable[[], bool]) -> None:
        """Read output until a condition holds."""
        end = time.monotonic() + self._patience
        while not true():
            assert time.monotonic() < end, self.output[-3000:]
            if select.select([self._ours], [], [], 0.02)[0]:
                self.output += os.read(self._ours, 1 << 16).decode(errors="replace")

    def shows(self, text: str) -> None:
        """Read output until it contains this text."""
        self.until(lambda: text in self.output)

    def ended(self) -> int:
        """Wait for the end and return the exit code. `output` then has all output."""
        self.until(lambda: self.process.poll() is not None)
        while select.select([self._ours], [], [], 0.05)[0]:
            self.output += os.read(self._ours, 1 << 16).decode(errors="replace")
        return self.process.wait()

    @property
    def after(self) -> str:
        """The text on the terminal after the screen has closed."""
        return self.output.rpartition("\x1b[?1049l")[2]
