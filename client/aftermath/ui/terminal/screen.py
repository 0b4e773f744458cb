"""Start, feed and close a screen, which runs in a process of its own.

Drawing takes no time from training. A screen that fails, or whose terminal hangs, costs only the
display, and lines follow. Other output of this process, compiled libraries included, goes to the
screen's log. The terminal is restored at the end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console

from aftermath.base.stdio import drop_closed_terminal
from aftermath.events import event_types
from aftermath.events.console import ConsoleLines, redraws
from aftermath.events.progress import Progress
from aftermath.events.status import RunStatus
from aftermath.events.stream import Wall
from aftermath.ui.terminal import terminal
from aftermath.ui.terminal.board import Role, ScreenOptions, errors_of
from aftermath.ui.terminal.messages import (
    MESSAGES,
    Clients,
    End,
    EventMessage,
    Facts,
    Line,
    Output,
    ReportMessage,
    StatusMessage,
    line_of,
)

_POLL_S = 1.0  # seconds between two reads of the run's status
_CLOSE = 0.6  # seconds that the screen has to close
_MOST = 5000  # messages to queue for a slow screen
_LAST = 20  # events that are printed again when the screen closes
_ORDINARY = (
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?7h"
)
"""Escape codes that restore a terminal: main screen, normal keys, no mouse, visible cursor."""


def can_show(console: Console) -> bool:
    """Return whether this process has a terminal to draw on and read keys from.

    A pipe, a dumb terminal, and the terminal of a background process do not count.
    """
    try:
        return redraws(console) and sys.stdin.isatty() and terminal.is_ours(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):  # closed or missing
        return False


class Screen:
    """Shows a run. Use it as a context manager and as a sink of events. `started` is by
    time.monotonic.
    """

    def __init__(
        self,
        console: Console,
        wall: Wall,
        started: float,
        role: Role,
        run_id: str,
        tier: int | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self._console = console
        self._lines = ConsoleLines(console, wall)
        self._opening = ScreenOptions(role, run_id, tier, started, names)
        self._progress = Progress()
        self._last: deque[event_types.Event] = deque(maxlen=_LAST)
        self._going = False
        self._queue: deque[MESSAGES] = deque(maxlen=_MOST)
        self._newest: dict[type[MESSAGES], MESSAGES] = {}
        self._look: Callable[[], RunStatus] | None = None
        self._changed = threading.Condition()
        self._open = self._closing = False
        self._closer = threading.Lock()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._opening.started

    # --- messages ---

    def __call__(self, event: event_types.Event) -> None:
        self._progress.take(event)
        self._going = self._going or isinstance(
            event, event_types.Leaving | event_types.Left | event_types.RunFinished
        )
        if self._going:
            self._last.append(event)
        if self._open:
            self._put(EventMessage(event))  # type: ignore[arg-type]
        else:
            self._lines(event)

    def look(self, look: Callable[[], RunStatus]) -> None:
        """Poll this function for the run's status on another thread."""
        self._look = look

    def show_status(self, status: RunStatus, connected: frozenset[bytes] | None = None) -> None:
        """Show the run's status."""
        self._renew(StatusMessage(status, connected))

    def show_clients(self, clients: Clients) -> None:
        """Show the state of a testnet and its clients."""
        self._renew(clients)

    def report(self, name: str, text: str) -> None:
        """Show a report of a testnet's client."""
        self._put(ReportMessage(self.elapsed(), name, text))

    def output(self, name: str, lines: Sequence[str]) -> None:
        """Show lines that a testnet's process printed."""
        self._put(Output(name, tuple(lines)))

    def facts(self, tab: str, rows: Mapping[str, str]) -> None:
        """Show rows of a tab with values that only this process knows."""
        self._put(Facts(tab, dict(rows)))

    def line(self, text: str) -> None:
        """Add a line to the log."""
        self._put(Line(self.elapsed(), text))

    def _put(self, message: MESSAGES) -> None:
        with self._changed:
            self._queue.append(message)
            self._changed.notify()

    def _renew(self, message: MESSAGES) -> None:
        """Queue the newest message of a kind in place of earlier ones."""
        with self._changed:
            self._newest[type(message)] = message
            self._changed.notify()

    @property
    def open(self) -> bool:
        """Whether the screen is shown. False once it ended by itself."""
        return self._open

    # --- the screen process ---

    def __enter__(self) -> Self:
        sys.stdout.flush()
        sys.stderr.flush()
        self._terminal = os.dup(sys.stdout.fileno())
        self._usual = terminal.modes(sys.stdin.fileno())
        ours, self._messages_out = os.pipe()
        opening = msgspec.json.encode(self._opening).decode()
        command = [sys.executable, "-P", "-m", "aftermath.ui.terminal", str(ours), opening]
        with terminal.signals_blocked():
            self._process = subprocess.Popen(
                command, stdout=self._terminal, stderr=self._terminal, pass_fds=[ours]
            )
        os.close(ours)
        self._open = True
        self._caught = _Caught(self.line)
        self._threads = [
            threading.Thread(target=work, name=work.__name__, daemon=True)
            for work in (self._tell, self._await_end)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_open = self._open
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._over()
        if was_open and self._opening.role == "member":
            self._console.print(
                f"run {self._opening.run_id}: {self._progress.text()}",
                highlight=False,
                markup=False,
            )
            for event in self._last:
                self._lines(event)

    def _over(self) -> None:
        """End the process and restore the terminal. A second caller waits for the first."""
        with self._closer:
            if not self._open:
                return
            try:
                code = self._process.wait(_CLOSE if self._closing else None)
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait()
            if code:
                with contextlib.suppress(OSError):
                    terminal.restore_modes(sys.stdin.fileno(), self._usual)
                    os.write(self._terminal, _ORDINARY)
            self._caught.release()
            drop_closed_terminal()
            self._open = False

    def _await_end(self) -> None:
        """Wait for the screen's process. If it ends by itself, print lines from then on."""
        self._process.wait()
        if not self._closing:
            self._over()
            errors_file = errors_of(self._process.pid)
            hint = f" (see {errors_file})" if errors_file.exists() else ""
            self._console.print(
                f"the screen has ended{hint}; lines follow",
                style="yellow",
                highlight=False,
                markup=False,
            )

    def _tell(self) -> None:
        """Write queued messages to the pipe as fast as they are read."""
        with (
            os.fdopen(self._messages_out, "wb", buffering=0) as pipe,
            contextlib.suppress(BrokenPipeError),
        ):
            newest_by_type: dict[type[MESSAGES], MESSAGES] = {}
            while True:
                with self._changed:
                    if not (self._queue or self._closing or self._newest):
                        self._changed.wait(_POLL_S)
                    messages = list(self._queue)
                    closing = self._closing
                    newest, self._newest = self._newest, {}
                    self._queue.clear()
                if self._look is not None and not closing:
                    newest[StatusMessage] = StatusMessage(self._look())
                messages += [
                    message
                    for kind, message in newest.items()
                    if message != newest_by_type.get(kind)
                ]
                newest_by_type |= newest
                for message in [*messages, End()] if closing else messages:
                    pipe.write(line_of(message))
                if closing:
                    return


class _Caught:
    """Capture what this process writes to the terminal, and pass it to `tell` line by line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        out, theirs = os.pipe()
        streams = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        self._kept = {stream.fileno(): os.dup(stream.fileno()) for stream in streams}
        for number in self._kept:
            os.dup2(theirs, number)
        os.close(theirs)
        threading.Thread(target=self._read, args=(out,), name="caught", daemon=True).start()

    def _read(self, out: int) -> None:
        with os.fdopen(out, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.strip():
                    self._tell(line.rstrip())

    def release(self) -> None:
        """Write to the terminal directly again."""
        sys.stdout.flush()
        sys.stderr.flush()
        for number, handler in self._kept.items():
            os.dup2(handler, number)
            os.close(handler)
