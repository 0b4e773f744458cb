"""Show a run's status once, or follow it, for a cluster and for a server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from aftermath.base.concurrency import cancel
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.dump import plain
from aftermath.cli.present import Result, facts, line_console, listing
from aftermath.events.members_table import COLUMNS, row_of
from aftermath.events.printable import json_text
from aftermath.events.status import RunStatus, facts_of, line, shown_levels
from aftermath.rules.audits import Case
from aftermath.rules.state import RunState
from aftermath.ui.run_follower import RunFollower
from aftermath.ui.terminal.screen import Screen, can_show

_REDRAW = 0.5  # seconds between two redraws of the elapsed time
Facts = tuple[str, Mapping[str, str]]
"""Name and rows of the screen's tab that shows the connection to the run."""


async def status_result(coordinator: CoordinatorClient, run_id: str) -> Result:
    """Return a run's status now. Raise NoSuchRun or Unavailable."""
    follower = RunFollower(coordinator, run_id)
    status = await follower.now()
    run = follower.run
    if not run.config.verification_percent:
        return Result(plain(status), page(status))
    cases = [case for case in await coordinator.cases(run_id) if case.is_open(run)]
    document = {**plain(status), "cases": [case_document(case) for case in cases]}
    return Result(document, page(status, cases))


def case_document(case: Case) -> dict[str, int]:
    """Return an open case for `--json`: its round, seats, and numbers of votes."""
    return {
        "round": case.height,
        "seat": case.target,
        "auditor": case.auditor,
        "jury": case.jury.bit_count(),
        "mismatch": case.mismatches.bit_count(),
        "match": case.matches.bit_count(),
    }


def case_text(case: Case) -> str:
    """Return an open case as a phrase."""
    votes = case_document(case)
    return (
        f"seat {votes['seat']}, round {votes['round']}: {votes['mismatch']} of {votes['jury']} "
        f"jurors found a mismatch, {votes['match']} a match"
    )


async def follow_run(
    coordinator: CoordinatorClient, run_id: str, facts: Facts, *, as_json: bool
) -> Result:
    """Show a run's state until it is finished or Ctrl-C. Raises NoSuchRun, Unavailable."""
    follower = RunFollower(coordinator, run_id)
    with (
        _showing(run_id, facts, as_json=as_json) as show,
        contextlib.suppress(asyncio.CancelledError),
    ):  # Ctrl-C ends it
        await _follow(follower, show)
    return Result(None, None)


async def _follow(follower: RunFollower, show: Callable[[RunStatus], None]) -> None:
    async with follower.following() as statuses:
        while True:
            next_status = asyncio.ensure_future(anext(statuses))
            try:
                while not (await asyncio.wait({next_status}, timeout=_REDRAW))[0]:
                    show(follower.standing())
            finally:
                if not next_status.done():
                    await cancel([next_status])
            status = next_status.result()
            show(status)
            if status.state is RunState.FINISHED:
                return


@contextlib.contextmanager
def _showing(run_id: str, facts: Facts, *, as_json: bool) -> Iterator[Callable[[RunStatus], None]]:
    """Yield a function that shows a run's status on a screen, or as a line per change."""
    console = line_console(soft_wrap=True, highlight=False)

    def say(last_status: RunStatus, text: str) -> None:
        dated = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  {text}"
        console.out(json_text(plain(last_status)) if as_json else dated)

    lines = _changes(say)
    if as_json or not can_show(console):
        yield lines
        return
    last_status: RunStatus | None = None
    with Screen(console, lambda: datetime.now(UTC), time.monotonic(), "watch", run_id) as screen:
        screen.facts(*facts)
        logged = _changes(lambda _, text: screen.line(text))

        def show(status: RunStatus) -> None:
            nonlocal last_status
            last_status = status
            if screen.open:
                screen.show_status(status)
                logged(status)
            else:
                lines(status)

        yield show
    if last_status is not None:
        console.out(line(last_status))  # remains on the terminal after the screen closes


def _changes(tell: Callable[[RunStatus, str], None]) -> Callable[[RunStatus], None]:
    """Return a function that calls `tell` with a status and its line, if the line has changed."""
    last = ""

    def show(status: RunStatus) -> None:
        nonlocal last
        if (text := line(status)) != last:
            tell(status, text)
        last = text

    return show


def page(status: RunStatus, cases: Sequence[Case] = ()) -> RenderableType:
    """Return a run's facts, its open cases and the table of its members."""
    rows = facts_of(status)
    if cases:
        rows["open cases"] = "; ".join(map(case_text, cases))
    if levels := shown_levels(status):
        rows["proven holders"] = levels
    blocks: list[RenderableType] = [facts(rows), Text()]
    if status.members:
        blocks.append(listing(COLUMNS, [row_of(member) for member in status.members]))
    return Group(*blocks)
