"""Show results to a person or a script: rich text, or one JSON document on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aftermath.base.errors import AftermathError
from aftermath.base.stdio import is_quiet
from aftermath.events.printable import json_text, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 200
RECIPE = "AFTERMATH_RECIPE"


_OPTIONS: ContextVar[Mapping[str, object] | None] = ContextVar(
    "options of the running command", default=None
)


@dataclass(frozen=True)
class Result:
    """The outcome of a command: `data` for scripts, `text` for people, and the exit code.

    A `text` of None was already printed. A `str` is printed without markup and control characters.
    `case` selects the next command (`next_steps`), and `made` has values for it.
    """

    data: object
    text: RenderableType | None
    exit_code: int = 0
    case: str = ""
    made: Mapping[str, object] = field(default_factory=dict)


class CommandError(AftermathError):
    """A command cannot do what was asked, for a reason the command itself found."""


class Ended(Exception):
    """Raised to end a command early with a result, and with an error if it failed."""

    def __init__(self, result: Result, error: AftermathError | None = None) -> None:
        super().__init__(result, error)
        self.result = result
        self.error = error


def show(result: Result, *, as_json: bool) -> None:
    """Print a result to stdout."""
    if result.text is None:
        return
    with writing():
        if as_json:
            print(json_text(result.data, indent=2))
        else:
            from rich.text import Text

            # A pipe has no width to fit into; rich would wrap at 80.
            console = console_with(width=None if sys.stdout.isatty() else PIPE_WIDTH)
            renderable = (
                plain_text(completed_text(result.text))
                if isinstance(result.text, str)
                else result.text
            )
            if isinstance(renderable, Text):
                console.print(renderable, soft_wrap=True)
            else:
                _draw(console, renderable)


def _draw(console: Console, renderable: RenderableType) -> None:
    """Print a table. Unless it goes to a terminal, remove the spaces with which rich pads its
    lines.
    """
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as padded:
        console.print(renderable)
    console.file.write(
        "".join(f"{line.rstrip()}\n" for line in padded.get().removesuffix("\n").split("\n"))
    )


@contextmanager
def writing() -> Iterator[None]:
    """Flush stdout after the block.

    Raises CommandError if stdout cannot be written, BrokenPipeError if its reader has ended.
    """
    if sys.stdout is None:
        raise CommandError(
            "standard output is closed", "Connect it to a terminal, a pipe or a file"
        )
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise CommandError(
            f"cannot write the output: {error.strerror}", "Write it to another file or disk"
        ) from None


def drop_output() -> None:
    """Redirect stdout to devnull, or its flush would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def drop_unwritten_output() -> None:
    """Discard stdout's buffer if flushing it fails."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def note(sentence: str, *, always: bool = False) -> None:
    """Print a sentence on stderr, so that stdout stays one document. -q leaves only warnings."""
    if is_quiet() and not always and not sentence.startswith("warning: "):
        return
    text = printable(completed_text(sentence), keep="\n")
    console_with(stderr=True, soft_wrap=True).print(text, style="dim", markup=False)


def console_with(**options: Any) -> Console:
    """Return a console for text. With NO_COLOR it writes no bold or dim text either."""
    from rich.console import Console

    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    return Console(highlight=False, emoji=False, **options)


def line_console(**options: Any) -> Console:
    """Return a console for a stream of lines. It raises BrokenPipeError, where rich would end the
    process.
    """
    from rich.console import Console

    class LineConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return LineConsole(**options)


def plain_text(text: str) -> Text:
    """Return text without markup and without control characters."""
    from rich.text import Text

    return Text(printable(text, keep="\n\t"))


def aside(renderable: RenderableType) -> None:
    """Print a table on stderr, unless quiet."""
    if is_quiet():
        return
    width = None if sys.stderr.isatty() else PIPE_WIDTH
    _draw(console_with(stderr=True, width=width), renderable)


def renamed(
    pairs: Mapping[str, object], name: str, new_key: str, value: object
) -> dict[str, object]:
    """Return the pairs with the entry `name` replaced by `shown: value`, in the same place."""
    return {
        new_key if key == name else key: value if key == name else old_value
        for key, old_value in pairs.items()
    }


def facts(pairs: Mapping[str, object]) -> Table:
    """Return a two-column table of names and values."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(_cell(name), _cell(value))
    return table


def listing(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table with a header. Cells fold in a narrow terminal, so that names and keys can be
    copied.
    """
    from rich.table import Column, Table

    table = Table(
        *(Column(name, overflow="fold") for name in columns),
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: object) -> Text:
    from rich.text import Text

    return Text(_cell_text(value))


def _cell_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(_cell_text(item) for item in value) or "-"
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return "-" if value is None or value == "" else printable(completed_text(str(value)))


def remember_options(options: Mapping[str, object]) -> None:
    """Store this command's options, which suggested commands repeat."""
    _OPTIONS.set(options)


def completed_text(text: str) -> str:
    """Return the text with commands that run as they stand (see `next_steps.completed`)."""
    options = _OPTIONS.get()
    if not options or "aftermath-solana " not in text or os.environ.get(RECIPE):
        return text
    from aftermath.cli.next_steps import completed

    return completed(text, options)
