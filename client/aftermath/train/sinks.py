"""Build the sinks of a member's events: screen or lines, files, metrics and trackers."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from aftermath.base.errors import Unsuitable
from aftermath.base.files import fix_of
from aftermath.base.stdio import VERBOSITY, Verbosity, is_quiet, one_output
from aftermath.events.console import ConsoleLines
from aftermath.events.event_files import EpochFiles
from aftermath.events.stream import Events, JsonLines, Sink, Wall
from aftermath.events.trackers import TrackerOptions
from aftermath.train.settings import TrainSettings
from aftermath.ui.terminal.screen import Screen, can_show


def events_of(
    settings: TrainSettings,
    stack: contextlib.ExitStack,
    complete: Callable[[str], str] = str,
) -> Events:
    """Build the sinks of the settings. Without a terminal, lines replace the screen.

    `complete`: see `Events`.
    """
    console = Console(soft_wrap=not sys.stdout.isatty())  # a pipe has no width to wrap at
    sinks: list[Sink] = []
    started = time.monotonic()
    if settings.logs == "json":
        sinks.append(JsonLines(sys.stdout, _date))
    elif settings.logs == "tui" and VERBOSITY.get() is Verbosity.INFO and can_show(console):
        screen = Screen(console, _date, started, "member", settings.run_id, settings.matformer_tier)
        sinks.append(stack.enter_context(screen))
    else:
        sinks.append(
            ConsoleLines(console, _date, quiet=is_quiet(), has_own_output=not one_output())
        )
    if settings.write_log:
        sinks.append(_file_sink("--write-log", settings.write_log, JsonLines))
    if settings.events_dir:
        sinks.append(_file_sink("--events-dir", settings.events_dir, EpochFiles))
    if settings.metrics_port is not None:
        sinks.append(_metrics_sink(settings.metrics_port, stack))
    sinks.extend(stack.enter_context(tracking) for tracking in TrackerOptions.of(settings).sinks())
    return Events(lambda: time.monotonic() - started, sinks, complete)


def collects_figures(settings: TrainSettings) -> bool:
    """Return whether the user wants figures of the machine."""
    return settings.metrics_port is not None or TrackerOptions.of(settings).any


def _file_sink(option: str, path: Path, writer: Callable[[Path, Wall], Sink]) -> Sink:
    """Return a sink that writes to `path`. Raises Unsuitable if writing fails."""
    try:
        return writer(path, _date)
    except OSError as error:
        sentence = f"{option}: cannot write {error.filename or path}: {error.strerror}"
        raise Unsuitable(sentence, fix_of(error)) from None


def _metrics_sink(port: int, stack: contextlib.ExitStack) -> Sink:
    """Serve metrics at this port, and return their sink. Raises Unsuitable if it is taken."""
    from aftermath.events.metrics import Metrics, served

    metrics = Metrics(_date)
    try:
        stack.enter_context(served(metrics, port))
    except OSError as error:
        raise Unsuitable(
            f"--metrics-port: cannot listen on port {port}: {error.strerror}", "Choose another port"
        ) from None
    return metrics


def _date() -> datetime:
    return datetime.now(UTC)
