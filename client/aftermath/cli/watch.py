"""`watch`: where a run stands, as it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aftermath.cli.command import command
from aftermath.cli.kept_events import JsonLines
from aftermath.cli.options import ClusterOptions, RunId
from aftermath.cli.present import Result
from aftermath.rules.state import RunState

if TYPE_CHECKING:
    from aftermath.observe.following import RunFollower
    from aftermath.watch.standing import Standing

_REDRAW = 0.5  # seconds between two looks at the time that passes


@command("watch", example="aftermath-solana watch --run-id demo")
async def watch(options: ClusterOptions, run_id: RunId, json_output: JsonLines = False) -> Result:
    """Follow where a run stands, until it is finished, or until Ctrl-C.

    On a terminal it has a screen of tabs, which Tab turns over and q closes; elsewhere a line is printed whenever
    something has changed.
    """
    from aftermath.cli.connection import connect
    from aftermath.observe.following import RunFollower

    async with connect(options) as chain:
        follower = RunFollower(chain.coordinator, run_id)
        with (
            _shown(options, run_id, as_json=json_output) as show,
            contextlib.suppress(asyncio.CancelledError),
        ):  # Ctrl-C ends it
            await _follow(follower, show)
    return Result(None, None)


async def _follow(follower: RunFollower, show: Callable[[Standing], None]) -> None:
    from aftermath.base.wait import cancel

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
def _shown(options: ClusterOptions, run_id: str, *, as_json: bool) -> Iterator[Callable[[Standing], None]]:
    """What shows a run: a screen, or lines of what has changed."""
    from aftermath.cli.dump import plain
    from aftermath.cli.kept_events import LineConsole
    from aftermath.tui.screen import Screen, can_show
    from aftermath.watch.standing_words import line

    console = LineConsole(soft_wrap=True, highlight=False)

    def say(found: Standing, line: str) -> None:
        dated = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  {line}"
        console.out(json.dumps(plain(found), ensure_ascii=False) if as_json else dated)

    lines = _changes(say)
    if as_json or not can_show(console):
        yield lines
        return
    found: Standing | None = None
    with Screen(console, lambda: datetime.now(UTC), time.monotonic(), "watch", run_id) as screen:
        screen.facts("Chain", {"rpc": options.rpc})
        logged = _changes(lambda _, line: screen.line(line))

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
    from aftermath.watch.standing_words import line

    last = ""

    def show(found: Standing) -> None:
        nonlocal last
        if (now := line(found)) != last:
            tell(found, now)
        last = now

    return show
