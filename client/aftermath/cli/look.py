"""Where a run stands, whoever keeps it: shown once, and followed, for `show-run` and `watch` of every script.

Decided: the coordinator's client is handed in, so that a cluster and a server are looked at by the same code.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from aftermath.base.concurrency import cancel
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.dump import plain
from aftermath.cli.present import Result, line_console
from aftermath.cli.run_page import page
from aftermath.events.printable import json_text
from aftermath.events.status import Standing, line
from aftermath.rules.state import RunState
from aftermath.ui.terminal.screen import Screen, can_show
from aftermath.ui.web.follower import RunFollower

_REDRAW = 0.5  # seconds between two looks at the time that passes
Facts = tuple[str, Mapping[str, str]]
"""A tab of the screen, and rows of it that say by what way the run is looked at."""


async def shown(coordinator: CoordinatorClient, run_id: str) -> Result:
    """Where a run stands now. Raises NoSuchRun, Unavailable."""
    found = await RunFollower(coordinator, run_id).now()
    return Result(plain(found), page(found))


async def followed(coordinator: CoordinatorClient, run_id: str, facts: Facts, *, as_json: bool) -> Result:
    """Show where a run stands until it is finished, or until Ctrl-C. Raises NoSuchRun, Unavailable."""
    follower = RunFollower(coordinator, run_id)
    with (
        _showing(run_id, facts, as_json=as_json) as show,
        contextlib.suppress(asyncio.CancelledError),
    ):  # Ctrl-C ends it
        await _follow(follower, show)
    return Result(None, None)


async def _follow(follower: RunFollower, show: Callable[[Standing], None]) -> None:
    async with follower.following() as standings:
        while True:
            coming = asyncio.ensure_future(anext(standings))
            try:
                while not (await asyncio.wait({coming}, timeout=_REDRAW))[0]:
                    show(follower.standing())
            finally:
                if not coming.done():
                    await cancel([coming])
            found = coming.result()
            show(found)
            if found.state is RunState.FINISHED:
                return


@contextlib.contextmanager
def _showing(run_id: str, facts: Facts, *, as_json: bool) -> Iterator[Callable[[Standing], None]]:
    """What shows a run: a screen, or lines of what has changed."""
    console = line_console(soft_wrap=True, highlight=False)

    def say(found: Standing, said: str) -> None:
        dated = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  {said}"
        console.out(json_text(plain(found)) if as_json else dated)

    lines = _changes(say)
    if as_json or not can_show(console):
        yield lines
        return
    found: Standing | None = None
    with Screen(console, lambda: datetime.now(UTC), time.monotonic(), "watch", run_id) as screen:
        screen.facts(*facts)
        logged = _changes(lambda _, said: screen.line(said))

        def show(now: Standing) -> None:
            nonlocal found
            found = now
            if screen.open:
                screen.stands(now)
                logged(now)
            else:
                lines(now)

        yield show
    if found is not None:
        console.out(line(found))  # what is left on the terminal


def _changes(tell: Callable[[Standing, str], None]) -> Callable[[Standing], None]:
    """Tells where a run stands, and that in a line, if it is otherwise than before, whatever time has passed."""
    last = ""

    def show(found: Standing) -> None:
        nonlocal last
        if (now := line(found)) != last:
            tell(found, now)
        last = now

    return show
