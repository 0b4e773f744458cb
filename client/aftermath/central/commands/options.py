"""Options that several commands of `aftermath-centralized` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.options import checked_run_id, shared

State = Annotated[Path, typer.Option("--state", help="The run's state.toml: a run's config file, and its run_id.")]
DataConfig = Annotated[
    Path | None,
    typer.Option(help="A data.toml: serve these tokens beside the run, at the address that the state file names."),
]
MaybeRunId = Annotated[
    str | None, shared("--run-id", text="The run's name, if the state file does not say it.", check=checked_run_id)
]
Identity = Annotated[
    Path | None,
    shared(
        "--identity-secret-key-path",
        "-i",
        text="The member's secret key, 32 bytes (openssl rand 32 > secret.key); else RAW_IDENTITY_SECRET_KEY, in hex.",
    ),
]
