"""Protect copies of the model that the run does not use, and describe them.

Such a copy may be all that is left of training that the run lost.
"""

from __future__ import annotations

import json
from pathlib import Path

from aftermath.base.outputs import protect
from aftermath.model.saved_checkpoints import step_of


def protected_copy(copy: Path, *, has_commands: bool) -> str:
    """Protect a copy and return sentences about it. `has_commands`: see `new_run`."""
    try:
        protect(copy)
    except OSError as error:
        future = f"Old checkpoints are removed, and this one cannot be protected: {error.strerror}"
    else:
        future = "Members do not remove it"
    return (
        f"{copy} is a copy of step {step_of(copy)} that the run does not use. {future}. "
        f"To keep that training, {new_run(copy, has_commands=has_commands)}"
    )


def new_run(copy: Path, *, has_commands: bool) -> str:
    """Return how to start a new run from a copy.

    `has_commands`: whether the run is on chain. False for a run on a server.
    """
    start = (
        "aftermath-solana create-run --run-id NEW, then "
        "aftermath-solana update-config --run-id NEW --config-path FILE, then "
        "aftermath-solana set-paused --run-id NEW resume"
        if has_commands
        else "aftermath-centralized server run --run-id NEW --state FILE"
    )
    return (
        "start a new run from the copy: in a config file, write "
        f"path = {json.dumps(str(copy))} in [model.LLM.checkpoint.Local], and run {start}"
    )
