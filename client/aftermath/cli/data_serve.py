"""`data serve`: the data server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result, note
from aftermath.data.port import PORT


@command("data serve", example="aftermath-solana data serve --config data.toml --port 5533")
async def data_serve(
    config: Annotated[Path, typer.Option(help="Its settings: dir, token_size, seq_len and shuffle_seed.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 picks a free one.")] = PORT,
) -> Result:
    """Serve token files to a run's members, over TCP.

    The run's config names it as data_location = { Server = "HOST:PORT" }. Whoever can reach the port can read. Runs
    until it is stopped with Ctrl-C.
    """
    import asyncio

    from aftermath.data.server import DataServer, load_settings, served

    settings = load_settings(config)
    source = served(settings)
    async with DataServer(source, settings.token_bytes).listening(host, port) as chosen:
        note(f"{source.sequences:,} sequences of {source.seq_len:,} tokens at {host}:{chosen}")
        await asyncio.Event().wait()
    return Result({}, None)
