"""`reopen`: let a finished run go on."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from aftermath.base.bounded import U32_MAX
from aftermath.cli.command import JSON, command, run_in_loop
from aftermath.cli.consent import YES, agreed, check_can_ask
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import EXIT_KNOWN, CommandError, Result, facts, note


@command("reopen", example="aftermath-solana reopen --run-id demo --total-steps 5000")
def reopen(
    options: SigningOptions,
    run_id: RunId,
    total_steps: Annotated[
        int, typer.Option("--total-steps", min=1, max=U32_MAX, help="How many steps the run is to have now, in all.")
    ],
    *,
    yes: YES = False,
    json_output: JSON = False,
) -> Result:
    """Let a finished run go on, with more steps.

    Its members have ended by then: they start train again. Change anything else with update-config first, for example a
    learning rate that ends at 0 after the old total_steps. Without --yes, the command refuses to train at a rate of 0.
    If the chain knows of no checkpoint with all trained steps, the command asks first. Without a terminal, or with
    --json, pass --yes instead.
    """
    if not yes:
        unsaved = run_in_loop(_checked(options, run_id, total_steps))
        if unsaved and not options.dry_run:
            from aftermath.events.status import not_recorded

            unknown = not_recorded(unsaved)
            check_can_ask("reopen", f"may start from an older model ({unknown})", as_json=json_output)
            lost = f"Unless a running member still has the model of run {run_id}, that training is lost"
            if not agreed(f"{unknown}. {lost}. Reopen it?"):
                return Result({"run_id": run_id}, f"run {run_id} stays as it is", EXIT_KNOWN)
    return run_in_loop(_reopened(options, run_id, total_steps))


async def _checked(options: SigningOptions, run_id: str, total_steps: int) -> int:
    """Return how many trained steps of a finished run are in no checkpoint on chain.

    Raises CommandError if the run would train its new steps at a learning rate of 0.
    """
    from aftermath.cli.connection import connect
    from aftermath.owner.troubles import idle_when_reopened
    from aftermath.rules.state import RunState
    from aftermath.rules.unsaved import unsaved_steps

    async with connect(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
    if run.state is not RunState.FINISHED:
        return 0
    idle = idle_when_reopened(model.lr_schedule, run.trained_steps, total_steps)
    if idle is not None:
        raise _rate_is_zero(run_id, idle, total_steps)
    return unsaved_steps(run, model)


def _rate_is_zero(run_id: str, idle: int, total_steps: int) -> CommandError:
    named = f"--run-id {shlex.quote(run_id)}"
    return CommandError(
        f"the learning rate of run {run_id} is 0 from step {idle} on: more steps would change nothing",
        f"Prolong the schedule first: in the run's config file, set total_steps = {total_steps} and let lr_schedule "
        f"last as long. Then: aftermath-solana update-config {named} --config-path FILE, and "
        f"aftermath-solana reopen {named} --total-steps {total_steps}. To train at a rate of 0, add --yes",
    )


async def _reopened(options: SigningOptions, run_id: str, total_steps: int) -> Result:
    from aftermath.cli.connection import sign_in
    from aftermath.events.progress import in_words
    from aftermath.owner.troubles import trouble_with_schedule
    from aftermath.rules.state import RunState

    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
        if run.state is not RunState.FINISHED:
            raise CommandError(
                f"run {run_id} is {in_words(run.state)}, and only a finished run is reopened",
                f"To resume a paused one: aftermath-solana set-paused --run-id {shlex.quote(run_id)} resume",
            )
        if total_steps <= run.trained_steps:
            raise CommandError(
                f"run {run_id} has trained {run.trained_steps} steps already",
                f"Name more than these, or first take it back: aftermath-solana rewind --run-id {shlex.quote(run_id)}",
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
