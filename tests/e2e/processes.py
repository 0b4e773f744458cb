"""Real processes under pytest-xprocess: start them without waiting, watch them, and kill or
interrupt them.

Every start has its own name, so that no stale process id is signalled.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from xprocess import ProcessStarter, XProcess

from e2e.fork_server import Forked, fork_server

CONSOLE = Path(sys.executable).with_name("aftermath-solana")
PATIENCE = 400.0  # seconds: a deadline for broken runs, not an expected duration
KILLED_SECONDS = 60.0  # maximum seconds until a killed process is gone, also on a busy machine
POLL = 0.1  # seconds: each check of a run sends a request to its network
_numbers = itertools.count(1)


class Running:
    """One process of a test."""

    def __init__(
        self,
        xprocess: XProcess,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        ready: str | None = None,
    ) -> None:
        """Start the process, and wait until its output matches `ready` if given."""
        self.name = f"{next(_numbers)}-{name}"
        kind = _starter(
            [str(word) for word in command], {**os.environ, **(environment or {})}, ready
        )
        _, self.log = xprocess.ensure(self.name, kind, persist_logs=False)
        self._child: subprocess.Popen[Any] | Forked = xprocess.resources[-1].popen
        # A failed test's report would hold the whole output of every process; `last_lines` is
        # enough.
        xprocess.config._extlogfiles.pop(self.name)
        self.expected = True
        """Whether it counts as a fault when it ends by itself with an error."""

    @property
    def pid(self) -> int:
        return int(self._child.pid)

    @property
    def code(self) -> int | None:
        """The exit status, or None while the process runs."""
        code: int | None = self._child.poll()
        return code

    @property
    def output(self) -> str:
        return Path(self.log).read_text(errors="replace")

    @property
    def last_lines(self) -> str:
        return f"{self.name} ({'running' if self.code is None else self.code}) said last:\n{self.output[-1000:]}"

    def kill(self) -> None:
        """Kill the process and its children with kill -9."""
        self.expected = False
        self.signal_all(signal.SIGKILL)
        self._child.wait(KILLED_SECONDS)

    def signal_all(self, number: int) -> None:
        """Send a signal to the process and its children."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):  # a child may end before its turn
                process.send_signal(number)

    def interrupt(self, seconds: float) -> None:
        """Press Ctrl-C and wait until the process ends. Fail after `seconds`."""
        self._child.send_signal(signal.SIGINT)
        self._child.wait(seconds)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait until the process ends by itself, and return its exit status."""
        until(lambda: self.code is not None, f"{self.name} ends", seconds)
        assert self.code is not None
        return self.code

    def check(self) -> None:
        """Fail if the process ended with an unexpected error."""
        if self.expected and self.code not in (None, 0):
            raise AssertionError(f"ended with an error: {self.last_lines}")

    def _tree(self) -> list[psutil.Process]:
        if self.code is not None:
            return []
        root = psutil.Process(self.pid)  # exists at least until `code` has waited for it
        return [*root.children(recursive=True), root]


class RunningMember(Running):
    """A member that is forked from a process with all imports."""

    def __init__(
        self, name: str, arguments: Sequence[str | Path], logs: Path, environment: Mapping[str, str]
    ) -> None:
        """Start `aftermath-solana ARGUMENTS`."""
        self.name = f"{next(_numbers)}-{name}"
        self.log = logs / f"{self.name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self._child = fork_server().start(
            [str(word) for word in arguments], self.log, {**os.environ, **environment}
        )
        self.expected = True


def command_line(process: psutil.Process) -> list[str]:
    """Return a process's command line, which is empty once the process has ended."""
    with suppress(psutil.NoSuchProcess):  # also of a child that nobody has waited for yet
        line: list[str] = process.cmdline()
        return line
    return []


def _starter(
    command: list[str], environment: dict[str, str], ready: str | None
) -> type[ProcessStarter]:
    class Starter(ProcessStarter):  # type: ignore[misc]
        args = command
        env = environment
        pattern = ready
        timeout = int(PATIENCE)
        max_read_lines = sys.maxsize
        terminate_on_interrupt = True

    if ready is None:

        def started(self: Any) -> bool:
            return True

        Starter.startup_check = started
    return Starter


def until(
    condition: Callable[[], Any],
    what: str,
    seconds: float = PATIENCE,
    watched: Callable[[], None] = lambda: None,
) -> Any:
    """Wait until a condition is truthy and return its value. `watched` may raise to give up
    earlier.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        watched()
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(POLL)
    return value
