"""Serves the tokens of `data.toml` next to a run. They must fit the state file's data."""

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


def data_for(path: Path, config: RunConfig) -> tuple[DataServerSettings, TokenFiles, int]:
    """What is to be served, and at which port. Raises DataError, UsageError where the two files do
    not go together.
    """
    server = config.llm.data_location.Server
    if server is None:
        raise UsageError(
            f"--data-config {path}: the state file does not have its data from a server",
            'Write data_location = { Server = "HOST:PORT" } there, the address at which members reach this machine',
        )
    settings = load_server_settings(path)
    if settings.seq_len != config.llm.max_seq_len:
        raise UsageError(
            f"{path} has sequences of {settings.seq_len} tokens, and the state file of {config.llm.max_seq_len}",
            "Set seq_len to the run's max_seq_len",
        )
    port = (
        server.address.rpartition(":")[2] if ":" in server.address.rpartition("]")[2] else str(PORT)
    )
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"data_location.Server is {server.address!r}",
            'Write data_location = { Server = "HOST:PORT" }',
        )
    return settings, open_served_files(settings), int(port)


@contextlib.asynccontextmanager
async def serving(
    data: tuple[DataServerSettings, TokenFiles, int] | None, host: str
) -> AsyncIterator[None]:
    """Serve it until the block ends; nothing of None. Raises DataError."""
    if data is None:
        yield
        return
    settings, source, port = data
    async with DataServer(source, settings.token_bytes).listening(host, port):
        yield
