"""Writes docs/commands.md from the commands' own help: `python -m aftermath.cli.docs docs/commands.md`.

Decided: the page is generated, never edited, so that an option is explained in one place; a test compares the two.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from aftermath.base.text import deliver
from aftermath.cli.describe import meaning, names
from aftermath.cli.help import example
from aftermath.cli.index import Index
from aftermath.cli.main import SOLANA

HIDDEN = ("help", "json_output", "quiet", "verbose")
"""The options of every command, which the preface has."""
PREFACE = """# Commands

Generated from `--help`; change the command, then run `python -m aftermath.cli.docs docs/commands.md`.

`aftermath-solana`, or `python -m aftermath` where it is not in the path. `help COMMAND` shows the help of a command.
Every command takes these options:

| option | meaning |
|---|---|
| `--json` | Print one JSON document on stdout. `train`, `train-local`, `watch` and `events` print one object a line. |
| `-q`, `--quiet` | Print warnings, errors and the result only. |
| `-v`, `--verbose` | Also print the debug log, on stderr. |
| `-h`, `--help` | Show the command's help. |

An error is printed on stderr: `error:` says what happened, `fix:` what to do, and `docs:` which section of this
installation's pages explains it. The last two are left out where there are none. With `--json`, the last line of stderr
is one object `{"error", "fix", "code", "docs"}`, whose `code` is one of [these](operations.md#error-codes). Notes in
plain words may come before it.

| exit code | meaning |
|---|---|
| 0 | done; for `train` also: left with Ctrl-C; for `can-join`: it may |
| 1 | understood, but not done: a file, a network, a run or the program was in the way; for `can-join`: it may not |
| 2 | a mistake in the command line: a command, option or value that means nothing, or one that is missing |
| 10 | the run takes clients of another version; for `can-join` too |
| 11 | the run does not admit this member, and starting it again changes nothing; for `can-join` too |
| 130 | ended by Ctrl-C |

Options with a name in brackets also read that environment variable, and `--rpc`, `--ws-rpc`,
`--wallet-private-key-path` and `--run-id` then what [is stored](operations.md#what-is-typed-each-time)."""


def page(index: Index = SOLANA, preface: str = PREFACE) -> str:
    """The whole page of a script's commands as markdown."""
    parts = [preface]
    for panel, entries in groupby(index.entries.items(), key=lambda item: item[1].panel):
        parts.append(f"## {panel}")
        parts += [section(index, name) for name, _ in entries]
    return "\n\n".join(parts) + "\n"


def section(index: Index, name: str) -> str:
    """One command: what it does, an example, its options."""
    loaded = index.load(name)
    text = "\n".join(line.strip() for line in (loaded.help or "").strip().splitlines())
    kinds = index.find(name).entry.__annotations__
    shown = [parameter for parameter in loaded.params if parameter.name not in HIDDEN]
    rows = [row(parameter, kinds[parameter.name]) for parameter in shown]
    table = "\n".join(["| option | meaning |", "|---|---|", *rows])
    return f"### {name}\n\n{text}\n\n```sh\n{example(loaded)}\n```\n\n{table}"


def row(parameter: Any, kind: Any) -> str:
    """One option or argument as a line of the table."""
    return f"| {', '.join(f'`{name}`' for name in names(parameter))} | {meaning(parameter, kind, '`')} |"


def main(index: Index = SOLANA, preface: str = PREFACE) -> None:
    """Write the page to the path given, or to stdout."""
    deliver(page(index, preface))


if __name__ == "__main__":
    main()
