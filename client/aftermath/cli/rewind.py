"""`rewind`: take a paused run back to a checkpoint that the chain has recorded.

Decided: a checkpoint is named by its step, as everywhere; of two with the same step the newer one is meant.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from aftermath.base.bounded import U32_MAX
from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import CommandError, Result, facts, listing
from aftermath.rules.model import Model, Recorded
from aftermath.rules.run import steps_before


@command("rewind", example="aftermath-solana rewind --run-id demo --to-step 120")
async def rewind(
    options: SigningOptions,
    run_id: RunId,
    to_step: Annotated[
        int | None,
        typer.Option("--to-step", min=0, max=U32_MAX, help="The step of the checkpoint; without it, list them."),
    ] = None,
) -> Result:
    """Take a paused run back to a recorded checkpoint, or list these.

    The next epoch starts from that checkpoint, at its step and its data. The chain keeps the run's checkpoint and the
    three before it; the one that the run had takes the other's place, so that it can be gone back to as well.
    """
    from aftermath.cli.connection import sign_in
    from aftermath.events.progress import in_words

    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
        if to_step is None:
            return _list(run_id, model)
        place = _place(run_id, model, to_step)
        if not run.halted:
            raise CommandError(
                f"run {run_id} is {in_words(run.state)}, and only a paused or finished run can be taken back",
                f"Pause it first: aftermath-solana set-paused --run-id {shlex.quote(run_id)} pause",
            )
        signature = await chain.coordinator.rewind(run_id, place, model.recorded[place].step)
        run, model, _ = await chain.coordinator.snapshot(run_id)
    data = {"run_id": run_id, **_plain(model.recorded[0]), "signature": str(signature)}
    return Result(data, facts(data))


def _place(run_id: str, model: Model, step: int) -> int:
    """The first place of a checkpoint of so many steps. Raises CommandError if there is none."""
    for place, one in enumerate(model.recorded):
        if one.exists and steps_before(one.step) == step:
            return place
    known = sorted({steps_before(one.step) for one in model.recorded if one.exists})
    raise CommandError(
        f"no checkpoint of step {step} is recorded for run {run_id}",
        f"Name one of step {', '.join(map(str, known))}" if known else "Name one first: aftermath-solana checkpoint",
    )


def _plain(one: Recorded) -> dict[str, Any]:
    return {
        "step": steps_before(one.step),
        "kind": one.checkpoint.kind.name.lower(),
        "repo": one.checkpoint.repo,
        "revision": one.checkpoint.revision,
        "data_index": one.data_index,
    }


def _list(run_id: str, model: Model) -> Result:
    rows = [_plain(one) for one in model.recorded if one.exists]
    if not rows:
        return Result([], f"run {run_id} has no checkpoint yet", case="none")
    table = listing(list(rows[0]), [list(row.values()) for row in rows])
    table.title = f"{counted(len(rows), 'checkpoint')} of run {run_id}, newest first"
    return Result(rows, table, case="listed")
