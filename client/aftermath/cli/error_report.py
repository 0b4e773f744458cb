"""Report errors: a sentence, its fix and a section of the docs on stderr, and the exit code.

An unexpected error writes its traceback to a private file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

import typer

from aftermath.base.errors import AftermathError
from aftermath.base.files import NO_ROOM
from aftermath.base.quiet_interrupts import EXIT_INTERRUPTED
from aftermath.cli.error_docs import PAGES, with_local_pages
from aftermath.cli.present import (
    RECIPE,
    completed_text,
    console_with,
    drop_output,
    drop_unwritten_output,
    note,
)
from aftermath.events.printable import json_text, printable

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
)
EXITS = {
    "usage": EXIT_USAGE,
    "client-version-mismatch": EXIT_VERSION,
    # a restart does not help until a person admits the wallet or changes an option, so supervisors
    # must stop
    **dict.fromkeys(_NOT_ADMITTED, EXIT_NOT_ADMITTED),
    # each start would lock and may lose another bond
    "ejected": EXIT_NOT_ADMITTED,
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
_FROM_PROFILE: ContextVar[Mapping[str, str] | None] = ContextVar(
    "what a command has from the user's profile", default=None
)


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
        drop_output()
        raise typer.Exit(0) from None
    except OSError as error:
        if error.errno in NO_ROOM:
            drop_unwritten_output()
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

        console = console_with(stderr=True, soft_wrap=True)
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
