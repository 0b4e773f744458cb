"""Serve the tokens of a `data.toml` next to a run, if they match its state file."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from aftermath.base.errors import UsageError
from aftermath.config.document import RunConfig
from aftermath.data import PORT
from aftermath.data.server import (
    DataServer,
    DataServerSettings,
    load_server_settings,
    open_served_files,
)
from aftermath.data.tokens import TokenFiles


def load_served_data(path: Path, config: RunConfig) -> tuple[DataServerSettings, TokenFiles, int]:
    """Return the settings, the token files and the port of the data server.

    Raises DataError, or UsageError if `data.toml` and the state file do not match.
    """
    server = config.llm.data_location.Server
    if server is None:
        raise UsageError(
            f"--data-config {path}: the state file does not read its data from a server",
            'Write data_location = { Server = "HOST:PORT" } in the state file, with an address of this machine',
        )
    settings = load_server_settings(path)
    if settings.seq_len != config.llm.max_seq_len:
        raise UsageError(
            f"{path} has seq_len {settings.seq_len}, but the run's max_seq_len is {config.llm.max_seq_len}",
            "Set seq_len to the run's max_seq_len",
        )
    port = (
        server.address.rpartition(":")[2] if ":" in server.address.rpartition("]")[2] else str(PORT)
    )
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"data_location.Server has no valid port: {server.address!r}",
            'Write data_location = { Server = "HOST:PORT" }',
        )
    return settings, open_served_files(settings), int(port)


@contextlib.asynccontextmanager
async def serve_data(
    data: tuple[DataServerSettings, TokenFiles, int] | None, host: str
) -> AsyncIterator[None]:
    """Serve the data until the block ends. None serves nothing. Raises DataError."""
    if data is None:
        yield
        return
    settings, source, port = data
    async with DataServer(source, settings.token_bytes).listening(host, port):
        yield
