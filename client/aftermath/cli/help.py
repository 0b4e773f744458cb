"""The help pages on a terminal: plain text that fits its width and never cuts a name.

Decided: an option stands on a line of its own when its names leave no room for the explanation, and an example is
never broken, so that it can be copied.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from aftermath.cli.describe import meaning, names

NAMES_COLUMN, NARROW_COLUMN = 27, 6
WIDEST, NARROW, NARROWEST = 100, 72, 50
GENERAL = "Options"
EVERYWHERE = (
    ("-q, --quiet", "Print warnings, errors and the result only."),
    ("-v, --verbose", "Also print the debug log, on stderr."),
    ("-h, --help", "Show this page."),
)
"""The options of every command."""


def command_page(path: str, command: Any, kinds: Mapping[str, Any]) -> str:
    """The page of one command; `kinds` are the types of its options."""
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    words = [f"[{parameter.name}]" for parameter in shown if parameter.param_type_name == "argument"]
    parts = _paragraphs(" ".join([f"Usage: {path}", "[OPTIONS]", *words])) + _paragraphs(command.help or "")
    by_panel: dict[str, list[tuple[str, str]]] = {}
    for parameter in shown:
        panel = getattr(parameter, "rich_help_panel", None) or GENERAL
        row = (", ".join(names(parameter)), meaning(parameter, kinds.get(parameter.name)))
        by_panel.setdefault(panel, []).append(row)
    by_panel.setdefault(GENERAL, []).extend(EVERYWHERE)
    for panel in sorted(by_panel, key=lambda name: name != GENERAL):
        parts.append(f"{panel}:\n{_rows(by_panel[panel])}")
    if command.epilog:
        parts.append(f"Example:\n  {example(command)}")
    return "\n\n".join(parts)


def example(command: Any) -> str:
    """The command line that its epilog shows."""
    return str(command.epilog).removeprefix("Example:").strip()


def index_page(script: str, command: Any, entries: Mapping[str, Any]) -> str:
    """The page of all commands of a script: `entries` by name, each with its panel and summary."""
    parts = [f"Usage: {script} COMMAND [OPTIONS]", *_paragraphs(command.help or "")]
    for panel, group in groupby(entries.items(), key=lambda item: item[1].panel):
        parts.append(f"{panel}:\n{_rows((name, entry.summary) for name, entry in group)}")
    options = [(", ".join(names(parameter)), meaning(parameter, None)) for parameter in command.params]
    parts.append(f"{GENERAL}:\n{_rows([*options, *EVERYWHERE])}")
    more = f"{script} help COMMAND explains a command."
    return "\n\n".join([*parts, *_paragraphs(f"{more}\n\n{command.epilog or ''}")])


def _paragraphs(text: str) -> list[str]:
    return [textwrap.fill(" ".join(part.split()), _width()) for part in text.split("\n\n") if part.strip()]


def _rows(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and explanations in two columns; names that are too long have their line to themselves."""
    width = _width()
    column = NAMES_COLUMN if width >= NARROW else NARROW_COLUMN
    lines = []
    for name, text in pairs:
        wrapped = textwrap.wrap(text, width - column - 4, break_long_words=False, break_on_hyphens=False)
        if len(name) > column:
            lines.append(f"  {name}")
        else:
            lines.append(f"  {name:{column}}  {wrapped.pop(0) if wrapped else ''}".rstrip())
        lines += [" " * (column + 4) + line for line in wrapped]
    return "\n".join(lines)


def _width() -> int:
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
