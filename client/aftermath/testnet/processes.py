"""Child processes with logs: start, wait, interrupt, kill. They end with their parent."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count, takewhile
from pathlib import Path
from typing import Protocol

from aftermath.base.errors import AftermathError
from aftermath.base.files import fix_of
from aftermath.testnet import watchdog


class ProcessError(AftermathError):
    """A child process failed. The message has its last output."""

    code = "testnet"


CALL_SECONDS = 300  # seconds for a setup command
STOP_SECONDS = 5.0
_ERROR = re.compile(r"^error: (.+)\nfix: (.+)$", re.MULTILINE)
"""An error as commands print it."""


class Running(Protocol):
    """A process, in a log or in a pane."""

    name: str

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def code(self) -> int | None:
        """The exit status, minus the signal number if a signal ended it, or None while it runs."""

    def kill(self) -> None:
        """Kill it with kill -9, as a power cut would."""

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""

    def last_lines(self) -> str:
        """Return its last output."""


def watched_command(control: str, command: list[str]) -> list[str]:
    """Return the command, wrapped so that it ends when the other end of `control` closes."""
    return [sys.executable, "-I", "-S", str(watchdog.__file__), control, *command]


class Process:
    """One child process with its log."""

    def __init__(
        self, name: str, command: list[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                watched_command("-", command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    @property
    def running(self) -> bool:
        return self.code is None

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        return self._child.poll()

    def kill(self) -> None:
        """Kill it with kill -9, as a power cut would."""
        if self.running:
            watchdog.kill(self._child.pid)
        self._child.wait()

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        if self.running:
            watchdog.interrupt(self._child.pid)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask it to end, as Ctrl-C does, and kill it if that takes too long."""
        stop_all([self], seconds)

    def expect_running(self) -> None:
        if not self.running:
            raise ProcessError(
                f"{self.name} ended with code {self.code}; its last output:\n{self.last_lines()}"
            )

    def last_lines(self, size: int = 1500) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else "(nothing)"


def stop_all(processes: Iterable[Running], seconds: float = STOP_SECONDS) -> None:
    """Ask all processes to end, and kill those that take longer than this."""
    left = [process for process in processes if process.code is None]
    for process in left:
        process.interrupt()
    until = time.monotonic() + seconds
    while (
        left := [process for process in left if process.code is None]
    ) and time.monotonic() < until:
        time.sleep(0.02)
    for process in left:
        process.kill()


def wait_for(awaited: str, ready: Callable[[], bool], seconds: float, process: Running) -> None:
    """Wait until `ready()`; ProcessError if the process ends first or it takes too long."""
    until = time.monotonic() + seconds
    while not ready():
        if process.code is not None:
            raise ProcessError(
                f"{process.name} ended with code {process.code}; its last output:\n{process.last_lines()}"
            )
        if time.monotonic() > until:
            output = process.last_lines()
            raise ProcessError(
                f"{awaited} did not start within {seconds:.0f} s; its last output:\n{output}"
            )
        time.sleep(0.05)


def call(command: list[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run a command to its end. Raises ProcessError with its last output if it fails."""
    words = " ".join(takewhile(lambda word: not word.startswith("-"), command[2:]))
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab", buffering=0) as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            begin = file.tell()
    except OSError as error:
        raise ProcessError(
            f"cannot write the log {log} of `{words}`: {error.strerror}", fix_of(error)
        ) from None
    process = Process(words, command, log, environment)
    until = time.monotonic() + CALL_SECONDS
    while process.running:
        if time.monotonic() > until:
            process.kill()
            raise ProcessError(
                f"`{words}` took longer than {CALL_SECONDS} s: is this machine busy?",
                "Try again later",
            )
        time.sleep(0.02)
    if process.code:
        output = log.read_bytes()[begin:].decode(errors="replace").strip()[-2000:]
        if match := _ERROR.search(output):
            raise ProcessError(f"`{words}` failed: {match[1]}", f"{match[2]}; the whole log: {log}")
        raise ProcessError(f"`{words}` failed:\n{output}", f"Read the whole log: {log}")


def at_once(commands: Iterable[list[str]], log: Path, environment: Mapping[str, str]) -> None:
    """Run commands in parallel, each with its own log. Raises ProcessError as `call` does."""
    logs = (log.with_stem(f"{log.stem}-{number}") for number in count(1))
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(
            lambda command, own_log: call(command, own_log, environment), commands, logs
        ):
            pass
