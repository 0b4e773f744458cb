"""Read the files of a server's run: its `state.toml` and the `data.toml` next to it.

A `state.toml` is a run's config file plus the run id. For compatibility it may also have the keys
of a run's progress, but only with their values before the first step. The progress itself is in the
state directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from aftermath.base.errors import UsageError
from aftermath.chain.addresses import run_seed
from aftermath.config.document import RunConfig, load_as
from aftermath.config.tables import Table
from aftermath.data import PORT
from aftermath.data.data_server import (
    DataServer,
    DataServerSettings,
    load_server_settings,
    open_served_files,
)
from aftermath.data.tokens import TokenFiles
from aftermath.rules.limits import RUN_ID_BYTES


class InitialProgress(Table):
    """The table `[progress]`, with the values before a run's first step."""

    epoch: Literal[0] = 0
    step: Literal[0, 1] = 1
    epoch_start_data_index: Literal[0] = 0


class StateFile(RunConfig):
    """The content of a `state.toml`."""

    run_id: Annotated[str, Field(min_length=1, max_length=RUN_ID_BYTES)] | None = None
    run_state: Literal["WaitingForMembers"] = "WaitingForMembers"
    progress: InitialProgress = InitialProgress()


def load_state_file(
    path: Path, run_id: str | None, init_warmup_time: int | None = None
) -> tuple[str, StateFile]:
    """Return the run id and the file, with `init_warmup_time` as warmup_time if it is given.

    Raises ConfigError or UsageError.
    """
    state = load_as(path, StateFile)
    if run_id is not None and state.run_id not in (None, run_id):
        raise UsageError(
            f"--run-id is {run_id!r}, but {path} says {state.run_id!r}",
            f"Leave out --run-id, or change run_id in {path}",
        )
    chosen = run_id or state.run_id
    if chosen is None:
        raise UsageError(
            f"{path} has no run_id",
            'Write run_id = "NAME" at its top, or pass --run-id NAME',
        )
    run_seed(chosen)
    if init_warmup_time is not None:
        rules = state.config.model_copy(update={"warmup_time": init_warmup_time})
        state = state.model_copy(update={"config": rules})
    return chosen, state


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
