"""Write docs/commands.md from the help pages: `python -m aftermath.cli.commands_page FILE`.

Options that several commands share are explained once. A test compares the page with the commands.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

from aftermath.base.text import deliver
from aftermath.cli.index import SETTINGS, Index
from aftermath.cli.main import SOLANA
from aftermath.cli.options import CLUSTER, FILES

HIDDEN = ("help", "json_output", "quiet", "verbose")
"""The options of every command, which the preface has."""
PANELS = (CLUSTER, FILES)
"""Option groups that a command takes as a whole, so one word refers to all of them."""
COLUMNS = 118
SHARED_FROM = 3
"""An option that this many commands explain with the same words is explained once."""
PREFACE = """# Commands

Generated from `--help`; change the command, then run `make docs`. Every command takes these options:

| option | meaning |
|---|---|
| `--json` | Print one JSON document on stdout. `train`, `train-local`, `watch` and `events` print one object a line. |
| `-q`, `--quiet` | Print only warnings, errors and the result. |
| `-v`, `--verbose` | Also print the debug log, on stderr. |
| `-h`, `--help` | Show the command's help. |

An error on stderr has up to three lines: `error:` says what happened, `fix:` what to do, and `docs:` which section
explains it. With `--json`, the last line of stderr is `{"error", "fix", "code", "docs"}`; `code` is one of
[these](operations.md#error-codes).

| exit code | meaning |
|---|---|
| 0 | Done. `train`: also left with Ctrl-C after its start. `can-join`: the wallet may join. |
| 1 | Not done: a file, a network, a run or the program prevented it. `can-join`: the wallet may not join. |
| 2 | The command line is wrong. |
| 10 | The run takes clients of another version. |
| 11 | The run does not admit this member, or ejected it. Do not start it again unchanged. |
| 12 | Trained steps are lost with this member, and starting it again does not bring them back. |
| 130 | Ended by Ctrl-C. `train`: only during its start, until PyTorch is loaded and an `auto` tier is chosen. |"""
SHARED_PREFACE = """## Shared options

Several commands take these options, and name them only. They and all options of `train` also read an environment
variable: `--run-id` reads `RUN_ID`. `--rpc`, `--ws-rpc`, `--wallet-private-key-path` and `--run-id` then read what
`config set` [stored](operations.md#stored-defaults)."""


class Option(NamedTuple):
    """An option or argument as the page shows it."""

    names: str
    meaning: str
    panel: str

    @property
    def line(self) -> str:
        """Return its line in a list."""
        return _filled(f"- {self.names}: {self.meaning}", indent="  ")


Options = Mapping[str, list[Option]]


def options_of(index: Index) -> Options:
    """Return the options of every command of a script, without those that all commands have."""
    by_command = {}
    for name in index.entries:
        loaded = index.load(name)
        context = loaded.context_class(loaded, info_name=name, **SETTINGS)
        by_command[name] = [
            _option(parameter, context)
            for parameter in loaded.params
            if parameter.name not in HIDDEN
        ]
    return by_command


def _option(parameter: Any, context: Any) -> Option:
    parameter.show_envvar = False  # the page says once which options read a variable
    _, text = parameter.get_help_record(context)
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    # errors name the limits
    text = re.sub(r"(; )?[-.\d]*(<=)?x[<>]=[\d.]+(?=\])", "", text).replace(" []", "")
    return Option(names, " ".join(text.split()), parameter.rich_help_panel or "")


def shared_of(options: Options) -> list[Option]:
    """Return by panel the options that SHARED_FROM or more commands explain in the same words."""
    counts = Counter(
        option for options_of_command in options.values() for option in options_of_command
    )
    shared = [
        option
        for option, commands in counts.items()
        if commands >= SHARED_FROM or option.panel in PANELS
    ]
    most_used = {
        option.names: option for option in sorted(shared, key=lambda option: counts[option])
    }
    ordered = [option for option in shared if most_used[option.names] is option]
    return sorted(
        ordered, key=lambda option: PANELS.index(option.panel) + 1 if option.panel in PANELS else 0
    )


def page(index: Index = SOLANA, preface: str = PREFACE) -> str:
    """Return the page of a script's commands as markdown, with the shared options of
    aftermath-solana.
    """
    solana = options_of(SOLANA)
    shared = shared_of(solana)
    options = solana if index is SOLANA else options_of(index)
    blocks = [preface]
    if index is SOLANA:
        blocks.append(SHARED_PREFACE)
        for panel, group in groupby(
            shared, key=lambda one: one.panel if one.panel in PANELS else ""
        ):
            blocks += [f"### {panel} options"] * bool(panel) + [option_list(list(group))]
    for panel, entries in groupby(index.entries.items(), key=lambda item: item[1].panel):
        blocks.append(f"## {panel}")
        for name, _ in entries:
            of_train = (
                [] if index is SOLANA else [one for one in solana["train"] if one not in shared]
            )
            blocks.append(section(index, name, options[name], shared, of_train))
    return "\n\n".join(blocks) + "\n"


def option_list(options: list[Option]) -> str:
    """Return a list of options."""
    return "\n".join(option.line for option in options)


def section(
    index: Index, name: str, options: list[Option], shared: list[Option], of_train: list[Option]
) -> str:
    """Return what one command does, an example, its own options, and the names of the shared ones.

    `of_train`: further options that another page explains, under `train`.
    """
    loaded = index.load(name)
    text = [_filled(paragraph) for paragraph in (loaded.help or "").strip().split("\n\n")]
    blocks = [f"### {name}", *text, f"```sh\n{index.find(name).example}\n```"]
    own_options = [option for option in options if option not in shared and option not in of_train]
    if own_options:
        blocks.append(option_list(own_options))
    if shared_names := _shared_names([option for option in options if option in shared], shared):
        page_name = "" if index is SOLANA else "commands.md"
        blocks.append(
            _filled(f"[Shared options]({page_name}#shared-options): {', '.join(shared_names)}.")
        )
    if train_options := [option for option in options if option in of_train]:
        blocks.append(
            _filled(
                f"As for [train](commands.md#train): {_names_or_exceptions(train_options, of_train)}."
            )
        )
    return "\n\n".join(blocks)


def _filled(text: str, indent: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(
        words, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _names_or_exceptions(options: list[Option], all_options: list[Option]) -> str:
    """Return the names of options, or "all options but" the others where these are fewer."""
    others = [option for option in all_options if option not in options]
    fewer = others if len(others) < len(options) else options
    names = ", ".join(option.names.partition(",")[0] for option in fewer)
    return f"all options but {names}" if fewer is others else names


def _shared_names(options: list[Option], shared: list[Option]) -> list[str]:
    """Return the names of shared options, with one name for a whole panel."""
    names = []
    whole_panels = [
        panel
        for panel in PANELS
        if {option for option in shared if option.panel == panel} <= set(options)
    ]
    for option in options:
        if option.panel not in whole_panels:
            names.append(option.names.partition(",")[0])
    return [*names, *(f"{panel.lower()} options" for panel in whole_panels)]


def main(index: Index = SOLANA, preface: str = PREFACE) -> None:
    """Write the page to the path given, or to stdout."""
    deliver(page(index, preface))


if __name__ == "__main__":
    main()
