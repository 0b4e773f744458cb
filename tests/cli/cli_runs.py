"""Run the command line in this process, and shared helpers for tests of its commands."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from aftermath.cli.main import app

CONSOLE = Path(sys.executable).with_name("aftermath-solana")
LOCAL = (
    "--iroh-relay",
    "disabled",
    "--iroh-discovery",
    "local",
    "--device",
    "cpu",
    "--threads",
    "1",
)


@dataclass(frozen=True)
class Outcome:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on stdout."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The JSON object on stderr of a command that failed."""
        assert self.code == 1, (self.code, self.out)
        return self.error_json

    @property
    def mistake(self) -> dict[str, str]:
        """Return the JSON error of a command line with a usage mistake."""
        assert self.code == 2, (self.code, self.out)
        return self.error_json

    @property
    def error_json(self) -> dict[str, str]:
        """The last line of stderr, which with `--json` is the error."""
        error: dict[str, str] = json.loads(self.err.strip().splitlines()[-1])
        assert set(error) - {"docs"} == {"error", "fix", "code"}
        assert error.get("docs", "a page")
        assert error["error"]
        assert error["code"]
        return error


class TerminalRunner(CliRunner):
    """Runs a command as if stdin and stderr were a terminal without colours."""

    @contextmanager
    def isolation(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with super().isolation(*args, **kwargs) as streams:
            for stream in (sys.stdin, sys.stderr):
                stream.isatty = lambda: True  # type: ignore[method-assign]
            yield streams


def invoke(*arguments: str | Path | int, script: Typer = app) -> Outcome:
    """Run a command line as a user would type it."""
    return _run(CliRunner(), script, arguments)


def invoke_typing(typed: str, *arguments: str | Path | int) -> Outcome:
    """Run a command line at a terminal where the user types this and then Ctrl-D."""
    return _run(TerminalRunner(env={"TERM": "dumb"}), app, arguments, typed)


def invoke_ending(*arguments: str | Path | int, script: Typer = app) -> Outcome:
    """Run a command that ends its process, in this process: `os._exit` becomes an exit that the
    runner sees.
    """
    log = logging.getLogger("aftermath")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", sys.exit)
        # `train` adds one, which writes to this command's output
        patch.setattr(log, "handlers", log.handlers[:])
        patch.setattr(log, "propagate", log.propagate)
        return invoke(*arguments, script=script)


def invoke_during(
    act: Callable[[Callable[[str], None]], None], *arguments: str | Path | int, script: Typer = app
) -> Outcome:
    """Run a command until `act` ends it from another thread, for example with `press_ctrl_c`.

    `act` receives a function that waits until the command has printed a text.
    """
    ended = threading.Event()

    def shows(text: str) -> None:
        while text not in _printed():
            assert not ended.wait(0.02), f"the command ended before it printed {text!r}"

    def end_it() -> None:
        try:
            act(shows)
        except BaseException:
            if not ended.is_set():
                press_ctrl_c()
            raise

    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(end_it)
        try:
            return invoke(*arguments, script=script)
        finally:
            ended.set()
            acting.result(60)


def _printed() -> str:
    """Return the output so far of a runner's command."""
    buffer = getattr(sys.stdout, "buffer", None)
    return buffer.getvalue().decode() if isinstance(buffer, io.BytesIO) else ""


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _run(
    runner: CliRunner,
    script: Typer,
    arguments: tuple[str | Path | int, ...],
    typed: str | None = None,
) -> Outcome:
    result = runner.invoke(script, [str(argument) for argument in arguments], input=typed)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return Outcome(result.exit_code, result.stdout, result.stderr)


def unread(line: list[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a process whose output is no longer read."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)


@dataclass(frozen=True)
class Shell:
    """A user with a wallet on a cluster."""

    rpc: str
    wallet: Path

    def __call__(self, command: str, *arguments: str | Path | int) -> Outcome:
        """Run a command against the cluster with `--json`. Sign with the wallet if the command
        signs.
        """
        signer = () if command in UNSIGNED else ("-w", self.wallet)
        return invoke(command, "--rpc", self.rpc, *signer, *arguments, "--json")


UNSIGNED = {
    "list-runs",
    "show-run",
    "json-dump-run",
    "json-dump-user",
    "can-join",
    "predownload",
    "join-authorization-read",
}


def train(shell: Shell, *arguments: str | Path) -> Outcome:
    """Run `train` until it ends, for commands that cannot take part."""
    return invoke_ending("train", "--rpc", shell.rpc, "-w", shell.wallet, *LOCAL, *arguments)
