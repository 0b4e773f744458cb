"""Run a testnet's processes in the panes of a private tmux.

tmux is a child in the foreground and ends with us. Each command watches a named pipe and ends when
the pipe closes. A pane stays when its command ends, and shows the next command of its name. tmux
exists on Unix only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from aftermath.testnet import watchdog
from aftermath.testnet.processes import (
    STOP_SECONDS,
    Process,
    ProcessError,
    wait_for,
    watched_command,
)

SESSION = "testnet"
_LOOK_SECONDS = 0.3  # maximum age in seconds of the known states of panes
_OPTIONS = (
    ("-g", "remain-on-exit", "on"),
    ("-g", "mouse", "on"),
    ("-g", "status-right", " Ctrl-B d: end "),
    ("-g", "pane-border-status", "top"),
    ("-g", "pane-border-format", " #{@name} "),
)


class Pane:
    """A process in a pane."""

    def __init__(self, name: str, panes: Panes, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._panes = panes

    @property
    def code(self) -> int | None:
        return self._panes.code(self.name)

    def kill(self) -> None:
        """Kill the process with kill -9, as a power cut would."""
        self._signal(watchdog.kill)
        until = time.monotonic() + STOP_SECONDS
        while self._panes.code(self.name, fresh=True) is None and time.monotonic() < until:
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Ask the process to end, as Ctrl-C does."""
        self._signal(watchdog.interrupt)

    def last_lines(self) -> str:
        """Return the text in its pane."""
        return self._panes.screen(self.name)

    def _signal(self, send: Callable[[int], None]) -> None:
        if self._panes.code(self.name, fresh=True) is None:
            with suppress(ProcessLookupError):
                send(self.pid)


class Panes:
    """The tmux session. Call `open` once per process, then `attach`."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._place = directory
        self._environment = {k: v for k, v in environment.items() if k != "TMUX"}
        self._socket = f"aftermath-{os.getpid()}"
        self._ids: dict[str, str] = {}
        self._held: dict[str, int] = {}
        self._looked = 0.0
        self._states = dict[str, int | None]()
        line = ["tmux", "-L", self._socket, "-f", os.devnull, "-D"]
        self._server = Process("tmux", line, directory / "logs" / "tmux.log", self._environment)
        wait_for("tmux", lambda: self._tmux("set", *_OPTIONS[0]).returncode == 0, 10, self._server)
        for option in _OPTIONS[1:]:
            self._tmux("set", *option)

    def open(self, name: str, command: list[str]) -> Pane:
        """Start a command in the pane of this name."""
        line = watched_command(str(self._pipe(name)), command)
        format_options = ("-P", "-F", "#{pane_id} #{pane_pid}")
        if pane_id := self._ids.get(name):
            outcome = self._tmux("respawn-pane", "-k", "-t", pane_id, *line)
            reply = self._tmux("display-message", "-p", "-t", pane_id, format_options[-1]).stdout
        else:
            size = os.get_terminal_size() if os.isatty(1) else os.terminal_size((200, 60))
            new = (
                "new-session",
                "-d",
                "-s",
                SESSION,
                "-x",
                str(size.columns),
                "-y",
                str(size.lines),
            )
            outcome = self._tmux(
                *(("split-window", "-d", "-t", [*self._ids.values()][-1]) if self._ids else new),
                *format_options,
                *line,
            )
            reply = outcome.stdout
        if outcome.returncode or len(reply.split()) != 2:
            raise ProcessError(
                f"tmux has no room for {name}: {outcome.stderr.strip()}",
                "Use a larger window, or --headless",
            )
        self._ids[name], pid = reply.split()
        self._tmux("set", "-p", "-t", self._ids[name], "@name", name)
        self._tmux("select-layout", "-t", SESSION, "tiled")
        self._looked = 0.0
        return Pane(name, self, int(pid))

    def attach(self) -> subprocess.Popen[bytes]:
        """Show tmux in this terminal until the user detaches."""
        return subprocess.Popen(
            ["tmux", "-L", self._socket, "attach", "-t", SESSION], env=self._environment
        )

    def code(self, name: str, *, fresh: bool = False) -> int | None:
        """Return a pane's exit status, or None while its command runs."""
        if not self._server.running:
            return -signal.SIGHUP
        if fresh or time.monotonic() > self._looked + _LOOK_SECONDS:
            self._look()
        return self._states.get(self._ids[name], -signal.SIGHUP)

    def _look(self) -> None:
        """Read the exit status of each pane's command."""
        form = (
            "#{pane_id} #{pane_dead} #{?pane_dead_signal,-#{pane_dead_signal},#{pane_dead_status}}"
        )
        rows = [
            row.split()
            for row in self._tmux("list-panes", "-s", "-t", SESSION, "-F", form).stdout.splitlines()
        ]
        self._states = {row[0]: int(row[2]) if len(row) > 2 else None for row in rows}
        self._looked = time.monotonic()
        if any(row[1:] == ["1"] for row in rows):  # tmux missed the signal with the exit status
            with suppress(ProcessLookupError):
                os.kill(self._server.pid, signal.SIGCHLD)

    def screen(self, name: str) -> str:
        """Return the text of a pane."""
        return self._tmux("capture-pane", "-p", "-t", self._ids[name]).stdout.strip()[-1500:]

    def close(self) -> None:
        """End tmux and everything that runs in it."""
        self._tmux("kill-server")
        self._server.stop()
        for fifo in self._held.values():
            os.close(fifo)
        self._held = {}

    def _pipe(self, name: str) -> Path:
        """Return the named pipe of this name. This process holds its other end."""
        path = self._place / "pipes" / name
        if name not in self._held:
            path.parent.mkdir(exist_ok=True)
            os.mkfifo(path, 0o600)
            self._held[name] = os.open(path, os.O_RDWR)
        return path

    def _tmux(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = ["tmux", "-L", self._socket, *arguments]
        return subprocess.run(
            line, capture_output=True, text=True, env=self._environment, check=False
        )
