"""What the scripts beside the package share with the commands: how results and errors look, and the exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import typer

from aftermath.cli.present import Result, reporting, show
from aftermath.run.errors import UsageError


class Arguments(argparse.ArgumentParser):
    """A script's arguments: its docstring is the help, and every script takes `--json`."""

    def __init__(self, script: str, doc: str | None) -> None:
        super().__init__(Path(script).name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--json", action="store_true", help="print one JSON document instead of text")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see: python scripts/{self.prog} --help")


def run(parser: Arguments, body: Callable[[argparse.Namespace], Result], argv: Sequence[str] | None) -> int:
    """Do what the arguments (those of the process if None) ask for, show it, and return the exit status."""
    given = sys.argv[1:] if argv is None else argv
    try:
        with reporting(as_json="--json" in given):
            arguments = parser.parse_args(given)
            result = body(arguments)
            show(result, as_json=arguments.json)
            return result.exit_code
    except typer.Exit as ended:
        return ended.exit_code
