"""Where a member's events go: the screen, or lines, and the files that were asked for."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from aftermath.base.errors import Unsuitable
from aftermath.train.settings import TrainSettings
from aftermath.watch.console import ConsoleLines
from aftermath.watch.events import Events, JsonLines, Sink
from aftermath.watch.terminal import TerminalView, redraws


def events_of(settings: TrainSettings, stack: contextlib.ExitStack) -> Events:
    """The sinks the settings ask for; lines instead of the live picture where nothing can be drawn over."""
    started = time.monotonic()

    def elapsed() -> float:
        return time.monotonic() - started

    console = Console(soft_wrap=not sys.stdout.isatty())  # a pipe has no width to wrap at
    sinks: list[Sink] = []
    if settings.logs == "json":
        sinks.append(JsonLines(sys.stdout, _date))
    elif settings.logs == "tui" and redraws(console):
        view = TerminalView(console, settings.run_id, settings.matformer_tier, elapsed)
        sinks.append(stack.enter_context(view))
    else:
        sinks.append(ConsoleLines(console, _date))
    if settings.write_log:
        sinks.append(_kept("--write-log", settings.write_log))
    if settings.events_dir:
        sinks.append(_kept("--events-dir", settings.events_dir / f"{time.time_ns()}-{os.getpid()}.jsonl"))
    return Events(elapsed, sinks)


def _kept(option: str, path: Path) -> JsonLines:
    """A file of events. Raises Unsuitable if there can be none."""
    try:
        return JsonLines(path, _date)
    except OSError as error:
        sentence = f"{option}: {error.filename or path} cannot be written: {error.strerror}"
        raise Unsuitable(sentence, "name a place that you may write to") from None


def _date() -> datetime:
    return datetime.now(UTC)
