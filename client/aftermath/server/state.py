"""A server's `state.toml`: a run's config file, plus what a new run needs.

The tables are those of a run's config, so that one file serves both. Values that describe a run's
progress may only describe its start, because only the saved state has the progress.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from aftermath.base.errors import UsageError
from aftermath.chain.addresses import run_seed
from aftermath.config.document import RunConfig, load_as
from aftermath.config.tables import Table
from aftermath.rules.limits import RUN_ID_BYTES


class InitialProgress(Table):
    """`[progress]`, as it is before a run's first step."""

    epoch: Literal[0] = 0
    step: Literal[0, 1] = 1
    epoch_start_data_index: Literal[0] = 0


class State(RunConfig):
    """The whole file."""

    run_id: Annotated[str, Field(min_length=1, max_length=RUN_ID_BYTES)] | None = None
    run_state: Literal["WaitingForMembers"] = "WaitingForMembers"
    progress: InitialProgress = InitialProgress()


def load_state(
    path: Path, run_id: str | None, init_warmup_time: int | None = None
) -> tuple[str, State]:
    """(the run's id, the file), with another `warmup_time` if one is given. Raises ConfigError,
    UsageError.
    """
    state = load_as(path, State)
    if run_id is not None and state.run_id not in (None, run_id):
        raise UsageError(
            f"--run-id is {run_id!r}, and {path} says {state.run_id!r}", "Leave one of them out"
        )
    chosen = run_id or state.run_id
    if chosen is None:
        raise UsageError(
            f"{path} does not say the run's id",
            'Write run_id = "NAME" at its top, or pass --run-id NAME',
        )
    run_seed(chosen)
    if init_warmup_time is not None:
        rules = state.config.model_copy(update={"warmup_time": init_warmup_time})
        state = state.model_copy(update={"config": rules})
    return chosen, state
