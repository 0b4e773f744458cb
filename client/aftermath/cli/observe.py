"""`observe`: runs on a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, checked_run_id, shared
from aftermath.cli.present import Result, note, show

FollowedRun = Annotated[
    str | None,
    shared(
        "--run-id",
        text="A run to follow from the start. The printed address opens its page.",
        check=checked_run_id,
        stored="run",
    ),
]


@command("observe", example="aftermath-solana observe --run-id demo --events runs/mine/events")
async def observe(
    options: ClusterOptions,
    run_id: FollowedRun = None,
    events: Annotated[
        Path | None,
        typer.Option(help="Directory that train --events-dir wrote, or one above several."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 lets other machines connect.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name by which browsers open the page, if it is not --host. Can be repeated."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port. 0 picks a free one.")
    ] = 8600,
    json_output: Annotated[
        bool,
        typer.Option("--json", help="Print the address as one JSON document.", show_default=False),
    ] = False,
) -> Result:
    """Serve a web page of a cluster's runs.

    Shows state, members, loss by tier and costs, live and back in time. Needs no wallet and changes
    nothing. History from before the start comes from --events. Runs until Ctrl-C.
    """
    import asyncio
    import contextlib
    from urllib.parse import quote

    from aftermath.base.signals import on_signals
    from aftermath.cli.connection import connect
    from aftermath.ui.web.observatory import Observatory
    from aftermath.ui.web.web_server import ObserverServer

    if events is not None and not events.exists():
        note(f"{events} does not exist yet: its events are shown once it does")
    with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C ends it
        async with connect(options) as chain:
            observatory = Observatory(
                chain.coordinator, named=run_id, events=[events] if events else []
            )
            async with (
                observatory.open(),
                ObserverServer(observatory, names=name or ()).listening(host, port) as chosen,
            ):
                url_host = f"[{host}]" if ":" in host else host
                page = f"run/{quote(run_id, safe='')}" if run_id else ""
                url = f"http://{url_host}:{chosen}/{page}"
                show(Result({"url": url}, f"the observer is at {url}"), as_json=json_output)
                ended = asyncio.Event()
                with on_signals(
                    lambda _: ended.set()
                ):  # also after `&` in a script, which makes it ignore SIGINT
                    await ended.wait()
    return Result(None, None)
