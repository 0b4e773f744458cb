"""Runs the command line in this process, and holds what the tests of its commands share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from aftermath.cli.main import app

CONSOLE = Path(sys.executable).with_name("aftermath-solana")
LOCAL = ("--iroh-relay", "disabled", "--iroh-discovery", "local", "--device", "cpu", "--threads", "1")


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended."""

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
        return self.told

    @property
    def mistake(self) -> dict[str, str]:
        """The same of a command line that could not be meant."""
        assert self.code == 2, (self.code, self.out)
        return self.told

    @property
    def told(self) -> dict[str, str]:
        """The last line of stderr, which is what `--json` makes of an error."""
        found: dict[str, str] = json.loads(self.err.strip().splitlines()[-1])
        assert set(found) == {"error", "fix", "code", "docs"}
        assert found["error"]
        assert found["code"]
        return found


def invoke(*arguments: str | Path | int) -> Outcome:
    """Run a command line as a user would type it."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return Outcome(result.exit_code, result.stdout, result.stderr)


@dataclass(frozen=True)
class Shell:
    """A user with a wallet at a cluster."""

    rpc: str
    wallet: Path

    def __call__(self, command: str, *arguments: str | Path | int) -> Outcome:
        """A command against the cluster, signed by the wallet where the command signs, with `--json`."""
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


def train(shell: Shell, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, because a member ends its process."""
    line = [CONSOLE, "train", "--rpc", shell.rpc, "-w", shell.wallet, *LOCAL, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, env=dict(os.environ))
