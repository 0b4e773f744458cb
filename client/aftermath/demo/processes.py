"""The demo's processes: started in their own sessions, logged to files, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from aftermath.demo.commands import DemoFailed, environment


class Process:
    """One child process with its log."""

    def __init__(self, name: str, command: list[str], log: Path, extra: dict[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment() | (extra or {}),
            )

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        return self._child.poll()

    def kill(self) -> None:
        """kill -9, as a power cut would."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def stop(self, seconds: float = 5.0) -> None:
        """Ask to end as Ctrl-C does; kill if that takes too long."""
        if not self.running:
            return
        os.killpg(self._child.pid, signal.SIGINT)
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def expect_running(self) -> None:
        if not self.running:
            raise DemoFailed(f"{self.name} ended with code {self.code}; its last words:\n{last_words(self.log)}")


def last_words(log: Path, size: int = 1500) -> str:
    """The end of a log file."""
    return log.read_text(errors="replace")[-size:] if log.exists() else "(nothing)"


def wait_for(what: str, ready: Callable[[], bool], seconds: float, process: Process) -> None:
    """Wait until `ready()`; DemoFailed if the process ends first or it takes too long."""
    until = time.monotonic() + seconds
    while not ready():
        process.expect_running()
        if time.monotonic() > until:
            raise DemoFailed(
                f"{what} did not come up within {seconds:.0f} s; its last words:\n{last_words(process.log)}"
            )
        time.sleep(0.05)
