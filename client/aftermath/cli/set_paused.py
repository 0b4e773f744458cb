"""`set-paused`: pause a run, or resume it."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result

if TYPE_CHECKING:
    from aftermath.rules.run import Run


class Action(StrEnum):
    """What to do with the run."""

    PAUSE = "pause"
    RESUME = "resume"


@command("set-paused", example="aftermath-solana set-paused --run-id demo resume")
async def set_paused(
    options: SigningOptions,
    run_id: RunId,
    action: Annotated[Action | None, typer.Argument(help="pause or resume.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="The same as the word resume.")] = False,
) -> Result:
    """Pause or resume a run.

    A pause ends an epoch in progress early, with the round that goes on and a cooldown; resuming a new run is what
    starts it.
    """
    from aftermath.cli.connection import sign_in
    from aftermath.events.progress import in_words

    if resume and action is Action.PAUSE:
        raise UsageError("pause and --resume contradict each other", "Say one of them")
    if not resume and action is None:
        raise UsageError(
            "set-paused needs the word pause or resume",
            f"aftermath-solana set-paused --run-id {shlex.quote(run_id)} pause, or resume",
        )
    paused = action is Action.PAUSE
    async with sign_in(options) as chain:
        await chain.coordinator.run(run_id)  # says so if there is no such run
        signature = await chain.coordinator.set_paused(run_id, paused)
        run = await chain.coordinator.run(run_id)
    state = run.state.name.lower()
    text = f"run {run_id} is now {in_words(run.state)}{_coming(run)}"
    return Result(
        {"run_id": run_id, "state": state, "pending_pause": run.pending_pause, "signature": str(signature)},
        text,
        case=case_of(run),
    )


def case_of(run: Run) -> str:
    """Which `next` follows: a run that pauses later cannot be changed yet, only watched."""
    from aftermath.rules.state import RunState

    return "paused" if run.state is RunState.PAUSED else ""


def _coming(run: Run) -> str:
    """When the run will pause, if it is about to: the rest of the epoch's rounds is not waited for."""
    from aftermath.rules.state import RunState

    if not run.pending_pause:
        return ""
    rest = "it" if run.state is RunState.COOLDOWN else "this round and cooldown"
    return f" and will pause after {rest}"
