"""`watch`: where a run stands, as it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
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

_REDRAW = 0.5  # seconds between two pictures of the time that passes


@command("watch", example="aftermath-solana watch --run-id demo")
async def watch(options: ClusterOptions, run_id: RunId, json_output: JsonLines = False) -> Result:
    """Follow where a run stands, until it is finished, or until Ctrl-C.

    On a terminal the page of show-run is drawn anew; elsewhere a line is printed whenever something has changed.
    """
    from aftermath.cli.connection import connect
    from aftermath.observe.following import RunFollower

    async with connect(options) as chain:
        follower = RunFollower(chain.coordinator, run_id)
        with _screen(as_json=json_output) as show, contextlib.suppress(asyncio.CancelledError):  # Ctrl-C ends it
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
def _screen(*, as_json: bool) -> Iterator[Callable[[Standing], None]]:
    """What shows a run: a picture that is drawn over, or lines of what has changed."""
    from rich.live import Live

    from aftermath.cli.kept_events import LineConsole
    from aftermath.cli.run_page import page
    from aftermath.watch.terminal import redraws

    console = LineConsole(soft_wrap=True, highlight=False)
    if as_json or not redraws(console):
        yield _lines(console.out, as_json=as_json)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda found: live.update(page(found, rows=console.height), refresh=True)


def _lines(write: Callable[[str], None], *, as_json: bool) -> Callable[[Standing], None]:
    """Shows a run where it stands otherwise than before, whatever time has passed."""
    from aftermath.cli.dump import plain
    from aftermath.cli.run_page import line

    last = ""

    def show(found: Standing) -> None:
        nonlocal last
        now = line(found)
        if now != last:
            at = datetime.now(UTC)
            write(json.dumps(plain(found), ensure_ascii=False) if as_json else f"{at:%Y-%m-%d %H:%M:%S}  {now}")
        last = now

    return show
