"""Helpers for scripts outside the package: results, errors and exit codes like the commands'."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.error_report import reporting
from aftermath.cli.present import Result, show


class ScriptParser(argparse.ArgumentParser):
    """An argument parser for a script: its docstring is the help, and `--json` prints JSON."""

    def __init__(self, call: str, doc: str | None, *, result: bool = True) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(call, description=doc, formatter_class=form, exit_on_error=False)
        if result:
            self.add_argument(
                "--json", action="store_true", help="print one JSON document instead of text"
            )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. An error about a value begins with the option's name."""
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            self.error(
                f"{error.argument_name} {error.message}" if error.argument_name else error.message
            )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"See: {self.prog} --help")


def as_command(name: str, argv: Sequence[str] | None) -> int:
    """Run a command with these arguments, or the process's if None. Return its exit status."""
    from aftermath.cli.main import app

    try:
        app([*name.split(), *(sys.argv[1:] if argv is None else argv)])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for a whole number within limits."""

    def read(text: str) -> int:
        number = (
            int(text)
            if text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20
            else None
        )
        if number is None or number < least or (most is not None and number > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be a whole number {limits}")
        return number

    return read


def one_of(allowed: Collection[int]) -> Callable[[str], int]:
    """Return an argparse type for one of some numbers."""

    def read(text: str) -> int:
        match = next((number for number in allowed if text == str(number)), None)
        if match is None:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(map(str, allowed))}")
        return match

    return read


def run(
    parser: ScriptParser, body: Callable[[argparse.Namespace], Result], argv: Sequence[str] | None
) -> int:
    """Run `body` with the parsed arguments, print its result, and return the exit status.

    `argv`: the arguments, or None for those of the process.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        with reporting(as_json="--json" in words):
            arguments = parser.parse_args(words)
            result = body(arguments)
            show(result, as_json=arguments.json)
            return result.exit_code
    except typer.Exit as ended:
        return ended.exit_code
