"""Tests that Ctrl-C ends every command quietly at any time, even during imports and at exit."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from aftermath.cli.command import command
from aftermath.cli.present import Result

WHEN_IMPORTED = """
import os, signal, sys

class Library:
    '''Is interrupted when a module is looked for, and swallows what that raises, as parts of torch do.'''

    def find_spec(self, name, path=None, target=None):
        if name == AT:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Library())
from PACKAGE.__main__ import main
main()
"""
WHEN_DONE = """
import atexit, os, signal
from aftermath.__main__ import main

atexit.register(os.kill, os.getpid(), signal.SIGINT)
main()
"""
TRAIN = ("train", "--run-id", "x", "-w", "none.json")
CLIENT = ("client", "train", "--run-id", "x", "--server-addr", "127.0.0.1:1")


def run(program: str, *line: str) -> tuple[int, str, str]:
    """Return how a process ended, and its output."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *line], capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "module", "line"),
    [
        ("aftermath", "typer", ("--help",)),
        ("aftermath", "aftermath.cli.train", (*TRAIN, "--help")),
        ("aftermath", "solders", TRAIN),
        ("aftermath", "torch", ("eval", ".")),
        ("aftermath.server", "typer", ("--help",)),
        ("aftermath.server", "solders", CLIENT),
    ],
)
def test_interrupt_during_imports_prints_one_line(
    package: str, module: str, line: tuple[str, ...]
) -> None:
    program = WHEN_IMPORTED.replace("PACKAGE", package).replace("AT:", f"{module!r}:")
    assert run(program, *line) == (130, "", "interrupted\n")


def test_interrupt_at_exit_prints_one_line() -> None:
    code, out, err = run(WHEN_DONE, "config", "show")
    assert (code, err) == (130, "interrupted\n")
    assert "rpc" in out


@pytest.mark.slow
def test_interrupt_of_run_files_prints_one_line(tmp_path: Path) -> None:
    program = f"""
import os, runpy, signal, sys
from aftermath.testnet import processes

processes.call = lambda *_: os.kill(os.getpid(), signal.SIGINT)
os.chdir({str(tmp_path)!r})
runpy.run_module("aftermath", run_name="__main__")
"""
    assert run(program, "run-files", "demo", "-q") == (130, "", "interrupted\n")


@pytest.mark.slow
def test_ignored_interrupt_stays_ignored() -> None:
    """`nohup` ignores SIGINT, and so does a shell for its background jobs."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code, _, err = run(
            WHEN_IMPORTED.replace("PACKAGE", "aftermath").replace("AT:", "'solders':"), *TRAIN
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 1
    assert "there is no key file" in err


def test_interrupt_in_command_body_runs_cleanup(tmp_path: Path) -> None:
    """The body receives a KeyboardInterrupt."""
    program = f"""
import os, signal
from aftermath.base.quiet_interrupts import QuietInterrupts
with QuietInterrupts():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        open({str(tmp_path / "cleaned")!r}, "w")
"""
    assert run(program) == (130, "", "interrupted\n")
    assert (tmp_path / "cleaned").exists()


async def _waits() -> Result:
    """Interrupt this process and wait."""
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(10)
    return Result({}, None)


def _sleeps() -> Result:
    """Interrupt this process and sleep."""
    signal.raise_signal(signal.SIGINT)
    time.sleep(10)
    return Result({}, None)


@pytest.mark.parametrize("body", [_waits, _sleeps])
def test_command_until_interrupt_ends_despite_ignored_sigint(body: Callable[[], Result]) -> None:
    """A script that starts it with `&` makes it ignore SIGINT."""
    app = typer.Typer()
    app.command("x")(command("x", example="x", until_interrupt=True)(body).entry)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = CliRunner().invoke(app, [])
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
