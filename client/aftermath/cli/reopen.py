"""`reopen`: let a finished run go on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from aftermath.base.numbers import U32_MAX
from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import CommandError, Result, facts, note


@command("reopen", example="aftermath-solana reopen --run-id demo --total-steps 5000")
async def reopen(
    options: SigningOptions,
    run_id: RunId,
    total_steps: Annotated[
        int, typer.Option("--total-steps", min=1, max=U32_MAX, help="How many steps the run is to have now, in all.")
    ],
) -> Result:
    """Let a finished run go on, with more steps.

    Its members have ended by then: they start train again. What else is to change is said with update-config first.
    """
    from aftermath.cli.connection import sign_in
    from aftermath.owner.troubles import trouble_with_schedule
    from aftermath.rules.state import RunState
    from aftermath.watch.phase import in_words

    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
        if run.state is not RunState.FINISHED:
            raise CommandError(
                f"run {run_id} is {in_words(run.state)}, and only a finished run is reopened",
                f"To resume a paused one: aftermath-solana set-paused --run-id {run_id} resume",
            )
        if total_steps <= run.trained_steps:
            raise CommandError(
                f"run {run_id} has trained {run.trained_steps} steps already",
                f"Name more than these, or first take it back: aftermath-solana rewind --run-id {run_id}",
            )
        unmeant = trouble_with_schedule(model.lr_schedule, total_steps)
        if unmeant:
            note(f"warning: {unmeant}")
        ix = chain.coordinator.ix
        steps = [
            ix.update(run_id, config=asdict(run.config) | {"total_steps": total_steps}),
            ix.set_paused(run_id, False),
        ]
        signatures = await chain.sender.send_packed(steps)
        run = await chain.coordinator.run(run_id)
    data = {
        "run_id": run_id,
        "state": run.state.name.lower(),
        "step": run.trained_steps,
        "total_steps": run.config.total_steps,
        "warnings": [unmeant] if unmeant else [],
        "signatures": [str(signature) for signature in signatures],
    }
    shown = {name: value for name, value in data.items() if name != "warnings"}
    return Result(data, facts(shown | {"state": in_words(run.state)}))
