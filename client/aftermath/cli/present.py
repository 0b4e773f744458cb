"""Show results and errors to a person or a script.

A result is rich text, or one JSON document on stdout. An error is a sentence, its fix and a section
of the docs on stderr; an unexpected one writes its traceback to a private file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from aftermath.base.errors import AftermathError
from aftermath.base.files import NO_ROOM
from aftermath.base.quiet_interrupts import EXIT_INTERRUPTED
from aftermath.base.stdio import is_quiet
from aftermath.cli.error_docs import PAGES, with_local_pages
from aftermath.events.printable import json_text, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

EXIT_KNOWN = 1
EXIT_USAGE = 2
EXIT_VERSION = 10
EXIT_NOT_ADMITTED = 11
EXIT_MODEL_LOST = 12
_NOT_ADMITTED = (
    "not-authorized",
    "barred",
    "not-admitted",
    "bond-above-limit",
    "verification-not-there",
)
EXITS = {
    "usage": EXIT_USAGE,
    "client-version-mismatch": EXIT_VERSION,
    # a restart does not help until a person admits the wallet or changes an option, so supervisors
    # must stop
    **dict.fromkeys(_NOT_ADMITTED, EXIT_NOT_ADMITTED),
    # a finished run stays finished, so supervisors must stop here too
    "model-lost": EXIT_MODEL_LOST,
}
"""The exit codes of errors by their own codes; that of all others is EXIT_KNOWN."""
_ABOUT_CHOICES = frozenset(
    {
        *_NOT_ADMITTED,
        *(
            "wallet",
            "not-main-authority",
            "not-grantor",
            "not-grantee",
            "not-allowed-to-kick",
            "insufficient-funds",
        ),
        *("not-allowed-to-checkpoint", "not-a-member", "no-such-run", "run-exists", "coordinator"),
        *("unavailable", "wrong-cluster", "program-not-deployed"),
    }
)
"""Errors that another cluster, wallet or run may avoid. Only these say what came from the profile.
"""
PIPE_WIDTH = 200
RECIPE = "AFTERMATH_RECIPE"


_OPTIONS: ContextVar[Mapping[str, object] | None] = ContextVar(
    "options of the running command", default=None
)
_FROM_PROFILE: ContextVar[Mapping[str, str] | None] = ContextVar(
    "what a command has from the user's profile", default=None
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
            console = _console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
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
            "the standard output is closed", "Connect it to a terminal, a pipe or a file"
        )
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise CommandError(
            f"cannot write the output: {error.strerror}", "Write it to another file or disk"
        ) from None


def _drop_output() -> None:
    """Redirect stdout to devnull, or its flush would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _drop_unwritten_output() -> None:
    """Discard stdout's buffer if flushing it fails."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def note(sentence: str, *, always: bool = False) -> None:
    """Print a sentence on stderr, so that stdout stays one document. -q leaves only warnings."""
    if is_quiet() and not always and not sentence.startswith("warning: "):
        return
    text = printable(completed_text(sentence), keep="\n")
    _console(stderr=True, soft_wrap=True).print(text, style="dim", markup=False)


def _console(**options: Any) -> Console:
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
    _draw(_console(stderr=True, width=width), renderable)


def renamed(pairs: Mapping[str, object], name: str, shown: str, value: object) -> dict[str, object]:
    """Return the pairs with the entry `name` replaced by `shown: value`, in the same place."""
    return {
        shown if key == name else key: value if key == name else old_value
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


@contextmanager
def reporting(*, as_json: bool) -> Iterator[None]:
    """Turn every error of the block into its sentence and an exit code (`typer.Exit`)."""
    try:
        yield
    except typer.Exit:
        raise
    except AftermathError as error:
        _fail(error.message, _with_origin(error), error.code, as_json=as_json)
    except KeyboardInterrupt:
        note("interrupted", always=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong, and there is nowhere to
        # say more.
        _drop_output()
        raise typer.Exit(0) from None
    except OSError as error:
        if error.errno in NO_ROOM:
            _drop_unwritten_output()
            target = f" {error.filename}" if error.filename else ""
            fix = "Free some space, or write to another disk"
            _fail(f"cannot write{target}: {error.strerror}", fix, "file", as_json=as_json)
        if error.filename is None:
            _fail_unexpected(error, as_json=as_json)
        _fail(
            f"{error.strerror}: {error.filename}",
            "Check the path and its permissions",
            "file",
            as_json=as_json,
        )
    except Exception as error:
        _fail_unexpected(error, as_json=as_json)


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


def remember_profile(values: Mapping[str, str]) -> None:
    """Store which options came from the profile, so that errors can name it."""
    _FROM_PROFILE.set(values)


def _with_origin(error: AftermathError) -> str:
    """Return the fix, with what came from the profile if the error is about that choice or quotes
    it.
    """
    from_profile = _FROM_PROFILE.get() or {}
    quoted = any(
        re.search(rf"(?<![\w/.-]){re.escape(value)}(?![\w/-])", error.message)
        for value in from_profile.values()
    )
    if not from_profile or not (quoted or error.code in _ABOUT_CHOICES):
        return error.fix
    from aftermath.cli.profile import profile_summary

    origin = f"From the profile: {profile_summary(from_profile)} (aftermath-solana config show)"
    return f"{error.fix.rstrip('.')}. {origin}" if error.fix else origin


def _as_typed(fix: str) -> str:
    """Return the fix as the user can type it. Under a Make recipe it names variables instead of
    options.
    """
    cluster = os.environ.get(RECIPE)
    if not cluster:
        return fix
    from aftermath.cli.options import READ

    words = {flag: f"the variable {variable}" for flag, variable in READ.items()} | {
        "--rpc": cluster
    }
    return re.sub(r"(?<![\w-])--?[a-z][\w-]*", lambda flag: words.get(flag[0], flag[0]), fix)


def _fail(sentence: str, fix: str, code: str, *, as_json: bool) -> NoReturn:
    docs = with_local_pages(PAGES.get(code, ""))
    fix = with_local_pages(_as_typed(completed_text(fix)))
    if as_json:
        document = {"error": sentence, "fix": fix, "code": code} | ({"docs": docs} if docs else {})
        print(json_text(document), file=sys.stderr, flush=True)
    else:
        from rich.markup import escape

        console = _console(stderr=True, soft_wrap=True)
        console.print("[bold red]error:[/] " + escape(printable(sentence, keep="\n")))
        if fix:
            console.print("[bold]fix:[/] " + escape(printable(fix, keep="\n")))
        if docs:
            console.print("[bold]docs:[/] " + escape(printable(docs)))
    raise typer.Exit(EXITS.get(code, EXIT_KNOWN))


def _fail_unexpected(error: Exception, *, as_json: bool) -> NoReturn:
    path = _write_traceback(error)
    sentence = f"unexpected error ({type(error).__name__})"
    _fail(sentence, f"Please report it with the details in {path}", "unexpected", as_json=as_json)


def _write_traceback(error: Exception) -> Path:
    """Keep a traceback for a report; without local variables, since those may hold a key."""
    import tempfile
    import traceback
    from datetime import UTC, datetime

    from aftermath.base.files import state_directory

    text = "".join(traceback.format_exception(error))
    name = f"error-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.log"
    for directory in (state_directory(), Path(tempfile.gettempdir())):
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            continue
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return directory / name
    return Path(os.devnull)
