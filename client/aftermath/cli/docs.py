"""Writes docs/commands.md from the commands' own help: `python -m aftermath.cli.docs docs/commands.md`.

Decided here: the page is generated, never edited, so that an option is explained in one place; a test compares the two.
"""

from __future__ import annotations

import sys
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from aftermath.cli.main import INDEX, find, load

PREFACE = """# Commands

Generated from `--help`; change the command, then run `python -m aftermath.cli.docs docs/commands.md`.

Every command takes `--json` and `--help`. An error is one sentence and its fix on stderr: exit code 1, or 2 for a
mistake in the command line. With `--json` the result is one JSON document on stdout, and an error `{"error", "fix"}`
the last line of stderr; notes in plain words may come before it, and an option that does not exist is told in plain
words too. `train --json` prints events instead, an error among them, and the plain sentence on stderr.

Options with a name in brackets also read that environment variable."""


def page() -> str:
    """The whole page as markdown."""
    parts = [PREFACE]
    for panel, entries in groupby(INDEX.items(), key=lambda item: item[1].panel):
        parts.append(f"## {panel}")
        parts += [section(name) for name, _ in entries]
    return "\n\n".join(parts) + "\n"


def section(name: str) -> str:
    """One command: what it does, an example, its options."""
    loaded = load(name)
    text = "\n".join(line.strip() for line in (loaded.help or "").strip().splitlines())
    example = (loaded.epilog or "").removeprefix("Example:").strip()
    kinds = find(name).entry.__annotations__
    shown = [parameter for parameter in loaded.params if parameter.name not in ("help", "json_output")]
    rows = [row(parameter, choices(kinds[parameter.name])) for parameter in shown]
    table = "\n".join(["| option | meaning |", "|---|---|", *rows])
    return f"### {name}\n\n{text}\n\n```sh\n{example}\n```\n\n{table}"


def choices(kind: Any) -> list[str]:
    """The words an option takes, if its type lists them."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for inner in get_args(kind) for word in choices(inner)]


def row(parameter: Any, words: list[str]) -> str:
    """One option or argument as a line of the table."""
    names = [f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)]
    if parameter.param_type_name == "argument":
        names = [f"`{parameter.name}`"]
    meaning = [(getattr(parameter, "help", "") or "").rstrip()]
    if words:
        meaning.append("One of " + ", ".join(f"`{word}`" for word in words) + ".")
    if parameter.required:
        meaning.append("Required.")
    elif not (parameter.default is None or parameter.default is False or parameter.default == ()):
        meaning.append(f"Default `{_shown(parameter.default)}`.")
    if parameter.envvar:
        meaning.append(f"[`{parameter.envvar}`]")
    return f"| {', '.join(names)} | {' '.join(meaning)} |"


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def main() -> None:
    """Write the page to the path given, or to stdout."""
    text = page()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
