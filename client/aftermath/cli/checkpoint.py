"""Commands about a run's recorded checkpoints: record one, go back to one, and continue a finished
run.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.bounded import U32_MAX
from aftermath.base.errors import UsageError
from aftermath.base.text import counted, is_repository
from aftermath.cli.command import JSON, YES, agreed, check_can_ask, command, run_in_loop
from aftermath.cli.error_report import EXIT_KNOWN
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import CommandError, Result, facts, listing, note
from aftermath.rules.model import Model, Recorded
from aftermath.rules.run import steps_before

if TYPE_CHECKING:
    from aftermath.rules.model import Checkpoint, Model
    from aftermath.rules.run import Run


@command(
    "checkpoint",
    example="aftermath-solana checkpoint --run-id demo --repo someone/demo-model --revision main",
)
async def checkpoint(
    options: SigningOptions,
    run_id: RunId,
    repo: Annotated[
        str | None, typer.Option(help="Hugging Face repository that holds the checkpoint.")
    ] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the repository.")] = "",
    path: Annotated[
        Path | None, typer.Option(help="Directory of the checkpoint, the same for every member.")
    ] = None,
) -> Result:
    """Record where the run's durable checkpoint is.

    The checkpoint must be the model that the members attested at the end of the last epoch.
    """
    import asyncio

    from aftermath.cli.connection import sign_in
    from aftermath.rules.model import Checkpoint
    from aftermath.rules.run import steps_before
    from aftermath.rules.state import CheckpointKind

    if repo is None and path is None:
        raise UsageError("the checkpoint's location is missing", "Pass --repo or --path")
    if repo is not None and path is not None:
        raise UsageError("--repo and --path contradict each other", "Pass one of them")
    if repo is not None and not is_repository(repo):
        raise UsageError(
            f"--repo {repo!r} is not a valid repository name",
            "Use OWNER/NAME, for example --repo ada/my-model",
        )
    if path is not None:
        source = Checkpoint(CheckpointKind.LOCAL, str(path.expanduser().resolve()), "")
    else:
        source = Checkpoint(CheckpointKind.HUB, repo or "", revision)
    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
        hashes = await asyncio.to_thread(attested_hashes, run, model, source)
        step = chain.coordinator.ix.checkpoint(
            run_id, kind=int(source.kind), repo=source.repo, revision=source.revision, hashes=hashes
        )
        signature = await chain.coordinator.transact(step)
        model = await chain.coordinator.model(run_id)
    data = {
        "run_id": run_id,
        "kind": model.checkpoint.kind.name.lower(),
        "repo": model.checkpoint.repo,
        "revision": model.checkpoint.revision,
        "step": steps_before(model.checkpoint_step),
        "signature": str(signature),
    }
    return Result(data, facts(data))


def attested_hashes(run: Run, model: Model, source: Checkpoint) -> list[bytes]:
    """Return the level hashes of the checkpoint's files. Raise CommandError if the members attested
    others.
    """
    from aftermath.model.checkpoint import load
    from aftermath.model.momentum_file import read_momentum
    from aftermath.model.run_checkpoint import load_hf_config, resolve
    from aftermath.model.segments import level_hash
    from aftermath.rules.run import steps_before
    from aftermath.train.requirements import schema_from

    if run.levels_attested != (1 << run.levels) - 1:
        raise CommandError(
            f"the members of run {run.run_id} have not attested a model yet",
            "Wait for the end of the first epoch",
        )
    # read only the path that the user names, never one from the chain
    schema = schema_from(load_hf_config(source), model, run.run_id, f"the checkpoint {source.repo}")
    directory = resolve(source, momentum=bool(schema.optimizer.outer_momentum))
    tensors = load(directory, 0)
    tensors |= read_momentum(directory, schema.state.config, schema.shared.momentum_shapes(0))
    levels = range(schema.state.levels)
    hashes = [level_hash(tensors, schema.shared, level) for level in levels]
    different = [level for level in levels if hashes[level] != run.level_hashes[level]]
    if different:
        raise CommandError(
            f"{source.repo} is not the model that the members attested at step {steps_before(run.attested_step)}: "
            f"level {different[0]} differs",
            "Name the checkpoint that a tier-0 member wrote at that step",
        )
    return hashes


@command("rewind", example="aftermath-solana rewind --run-id demo --to-step 120")
async def rewind(
    options: SigningOptions,
    run_id: RunId,
    to_step: Annotated[
        int | None,
        typer.Option(
            "--to-step",
            min=0,
            max=U32_MAX,
            help="Step of the checkpoint. By default, list the checkpoints.",
        ),
    ] = None,
) -> Result:
    """Take a paused run back to a recorded checkpoint, or list the checkpoints.

    The next epoch starts from that checkpoint, at its step and its data. The chain keeps the run's
    checkpoint and the three before it. The two checkpoints swap places, so you can undo a rewind.
    """
    from aftermath.cli.connection import sign_in
    from aftermath.events.progress import state_phrase

    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id, any_spec=True)
        if to_step is None:
            return _recorded_list(run_id, model)
        index = _recorded_index(run_id, model, to_step)
        if not run.halted:
            raise CommandError(
                f"run {run_id} is {state_phrase(run.state)}, and only a paused or finished run can be rewound",
                _how_to_pause(run_id, run),
            )
        signature = await chain.coordinator.rewind(run_id, index, model.recorded[index].step)
        if set_aside := _set_aside_text(run, model, to_step):
            note(set_aside)
        run, model, _ = await chain.coordinator.snapshot(run_id, any_spec=True)
    data = {"run_id": run_id, **_recorded_data(model.recorded[0]), "signature": str(signature)}
    return Result(data, facts(data))


def _how_to_pause(run_id: str, run: Run) -> str:
    command = f"aftermath-solana {{}} --run-id {shlex.quote(run_id)}"
    if run.pending_pause:
        return (
            f"Wait for the pause, which begins when the epoch ends, or run {command.format('tick')}"
        )
    return f"Pause it first: {command.format('set-paused')} pause"


def _set_aside_text(run: Run, model: Model, to_step: int) -> str:
    """Return what a rewind from this state to a step sets aside, "" if no trained step."""
    removed = run.trained_steps - to_step
    if removed <= 0:
        return ""
    text = f"{counted(removed, 'step is', 'steps are')} set aside"
    newest = model.recorded[0]
    last_saved = steps_before(newest.step) if newest.exists else 0
    unsaved = run.trained_steps - max(last_saved, to_step)
    if unsaved:
        text += f", of which {unsaved} in no recorded checkpoint"
    if last_saved <= to_step:
        return text
    flags = f"--run-id {shlex.quote(run.run_id)} --to-step {last_saved}"
    return f"{text}. To go back to step {last_saved}: aftermath-solana rewind {flags}"


def _recorded_index(run_id: str, model: Model, step: int) -> int:
    """Return the first place of a checkpoint of this step. Raise CommandError if there is none."""
    for index, recorded in enumerate(model.recorded):
        if recorded.exists and steps_before(recorded.step) == step:
            return index
    steps = sorted({steps_before(recorded.step) for recorded in model.recorded if recorded.exists})
    raise CommandError(
        f"run {run_id} has no recorded checkpoint of step {step}",
        f"Choose one of these steps: {', '.join(map(str, steps))}"
        if steps
        else "Record one first: aftermath-solana checkpoint",
    )


def _recorded_data(recorded: Recorded) -> dict[str, Any]:
    return {
        "step": steps_before(recorded.step),
        "kind": recorded.checkpoint.kind.name.lower(),
        "repo": recorded.checkpoint.repo,
        "revision": recorded.checkpoint.revision,
        "data_index": recorded.data_index,
    }


def _recorded_list(run_id: str, model: Model) -> Result:
    rows = [_recorded_data(one) for one in model.recorded if one.exists]
    if not rows:
        return Result([], f"run {run_id} has no checkpoint yet", case="none")
    table = listing(list(rows[0]), [list(row.values()) for row in rows])
    table.title = f"{counted(len(rows), 'checkpoint')} of run {run_id}, newest first"
    return Result(rows, table, case="listed")


@command("reopen", example="aftermath-solana reopen --run-id demo --total-steps 5000")
def reopen(
    options: SigningOptions,
    run_id: RunId,
    total_steps: Annotated[
        int, typer.Option("--total-steps", min=1, max=U32_MAX, help="New total number of steps.")
    ],
    *,
    yes: YES = False,
    json_output: JSON = False,
) -> Result:
    """Continue a finished run with more steps.

    Members have to start train again. Change everything else with update-config first, for example
    a learning rate that ends at 0 after the old total_steps: without --yes, the command refuses to
    train at a rate of 0. It asks first if the chain has no checkpoint with all trained steps.
    Without a terminal, or with --json, pass --yes.
    """
    if not yes:
        unsaved = run_in_loop(_check_reopen(options, run_id, total_steps))
        if unsaved and not options.dry_run:
            from aftermath.events.progress import not_recorded

            unsaved_text = not_recorded(unsaved)
            check_can_ask(
                "reopen", f"may start from an older model ({unsaved_text})", as_json=json_output
            )
            consequence = f"Unless a running member still has the model of run {run_id}, that training is lost"
            if not agreed(f"{unsaved_text}. {consequence}. Reopen it?"):
                return Result({"run_id": run_id}, f"run {run_id} is unchanged", EXIT_KNOWN)
    return run_in_loop(_reopen(options, run_id, total_steps))


async def _check_reopen(options: SigningOptions, run_id: str, total_steps: int) -> int:
    """Return how many trained steps of a finished run are in no checkpoint on chain.

    Raises CommandError if the run would train its new steps at a learning rate of 0.
    """
    from aftermath.cli.connection import connect
    from aftermath.owner.warnings import idle_when_reopened
    from aftermath.rules.contents import unsaved_steps
    from aftermath.rules.state import RunState

    async with connect(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
    if run.state is not RunState.FINISHED:
        return 0
    idle = idle_when_reopened(model.lr_schedule, run.trained_steps, total_steps)
    if idle is not None:
        raise _rate_is_zero(run_id, idle, total_steps)
    return unsaved_steps(run, model)


def _rate_is_zero(run_id: str, idle: int, total_steps: int) -> CommandError:
    run_flag = f"--run-id {shlex.quote(run_id)}"
    return CommandError(
        f"the learning rate of run {run_id} is 0 from step {idle} on: more steps would change nothing",
        f"Extend the schedule first: in the run's config file, set total_steps = {total_steps} and let lr_schedule "
        f"last as long. Then: aftermath-solana update-config {run_flag} --config-path FILE, and "
        f"aftermath-solana reopen {run_flag} --total-steps {total_steps}. To train at a rate of 0, add --yes",
    )


async def _reopen(options: SigningOptions, run_id: str, total_steps: int) -> Result:
    from aftermath.cli.connection import sign_in
    from aftermath.events.progress import state_phrase
    from aftermath.owner.warnings import warning_about_schedule
    from aftermath.rules.state import RunState

    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
        if run.state is not RunState.FINISHED:
            raise CommandError(
                f"run {run_id} is {state_phrase(run.state)}, and only a finished run can be reopened",
                f"To resume a paused run: aftermath-solana set-paused --run-id {shlex.quote(run_id)} resume",
            )
        if total_steps <= run.trained_steps:
            raise CommandError(
                f"run {run_id} has already trained {run.trained_steps} steps",
                f"Pass more --total-steps, or rewind it first: aftermath-solana rewind --run-id {shlex.quote(run_id)}",
            )
        warning = warning_about_schedule(model.lr_schedule, total_steps)
        if warning:
            note(f"warning: {warning}")
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
        "warnings": [warning] if warning else [],
        "signatures": [str(signature) for signature in signatures],
    }
    rows = {name: value for name, value in data.items() if name != "warnings"}
    return Result(data, facts(rows | {"state": state_phrase(run.state)}))
