"""`update-config`: set what a run trains and by which rules.

Everything is checked before anything is sent: the file by `config.document`, the model by building
the run's schema. The parts go into as few transactions as fit. If no key changes, nothing is sent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.bounded import U32_MAX, U64_MAX
from aftermath.base.errors import UsageError
from aftermath.base.text import counted
from aftermath.cli.command import JSON, command
from aftermath.cli.options import CLIENT_VERSION, DESCRIPTION, SHOWN_NAME, RunId, SigningOptions
from aftermath.cli.present import Result, aside, facts, listing, note

if TYPE_CHECKING:
    from rich.table import Table

    from aftermath.cli.connection import SignedCluster
    from aftermath.config.document import RunConfig
    from aftermath.owner.change import Change, Difference
    from aftermath.owner.schema import Shape
    from aftermath.rules.model import Checkpoint, Model
    from aftermath.rules.run import Run


@dataclass(frozen=True)
class ShownOptions:
    """Options of the run's metadata."""

    name: Annotated[str | None, SHOWN_NAME] = None
    description: Annotated[str | None, DESCRIPTION] = None
    num_parameters: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=U64_MAX,
            help="Displayed number of parameters. By default from the checkpoint's config.",
        ),
    ] = None
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=U64_MAX,
            help="Displayed vocabulary size. By default from the checkpoint's config.",
        ),
    ] = None


@command(
    "update-config",
    example="aftermath-solana update-config --run-id demo --config-path config/demo/config.toml",
)
async def update_config(
    options: SigningOptions,
    run_id: RunId,
    *,
    config_path: Annotated[Path | None, typer.Option(help="The run's config.toml.")] = None,
    restart_from_step: Annotated[
        int | None, typer.Option(min=1, max=U32_MAX, help="Continue at this step and its data.")
    ] = None,
    switch_to_hub: Annotated[
        bool,
        typer.Option(
            "--switch-to-hub",
            help="Start the next epoch from the durable checkpoint (the file's, if given) instead of from peers.",
        ),
    ] = False,
    shown: ShownOptions,
    client_version: Annotated[str | None, CLIENT_VERSION] = None,
    json_output: JSON = False,
) -> Result:
    """Set or change a run's configuration.

    The run must be halted: pause it first. Options that you leave out keep their values. Shows
    every changed key before it sends the change. Sends nothing if nothing changes.
    """
    from solders.pubkey import Pubkey

    from aftermath import __version__
    from aftermath.chain.admission import warning_about_version
    from aftermath.chain.refusals import program_refusal
    from aftermath.cli.authorization import open_to_all
    from aftermath.cli.connection import sign_in
    from aftermath.owner.change import Change
    from aftermath.owner.warnings import warnings_of

    metadata = {key: value for key, value in asdict(shown).items() if value is not None}
    if not (
        config_path or restart_from_step or switch_to_hub or metadata or client_version is not None
    ):
        raise UsageError(
            "no change was requested", "Pass --config-path FILE or one of the other options"
        )
    config, shape, data_warning = _read(config_path)
    change = Change(metadata, config, shape, restart_from_step, switch_to_hub, client_version)
    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id, any_spec=True)
        if run.main_authority != bytes(chain.wallet.pubkey):
            raise program_refusal("NotMainAuthority", run_id)
        kept_checkpoint = change.kept_checkpoint(model)
        open_to_everybody = await open_to_all(chain, Pubkey.from_bytes(run.join_authority), run_id)
        if open_to_everybody and not chain.pool.is_local:
            _check_open(change, run_id, model)
        sent_data = await _send(chain, change, run, model, as_json=json_output)
        run, model, _ = await chain.coordinator.snapshot(run_id, any_spec=True)
    warnings = warnings_of(run, model, shape, data_warning) if shape else []
    if version_warning := warning_about_version(client_version or "", __version__):
        warnings.append(version_warning)
    _warn(kept_checkpoint, warnings)
    data = _data(run, model, shape) | {"warnings": warnings} | sent_data
    return Result(
        data,
        _for_people(data, shape),
        case=_case(run, open_to_everybody=open_to_everybody),
        made={"total_steps": _more_steps(run)},
    )


def _case(run: Run, *, open_to_everybody: bool) -> str:
    """Return the case for `next_steps`. A finished run has to be reopened."""
    from aftermath.rules.state import RunState

    if run.state is RunState.FINISHED:
        return "finished"
    return "" if open_to_everybody else "invited"


def _more_steps(run: Run) -> int | None:
    """Return the run's total steps if some are left to train, else None."""
    total = run.config.total_steps
    return total if total > run.trained_steps else None


def _check_open(change: Change, run_id: str, model: Model) -> None:
    """Raise OpenRunRefused if the config is not for a run that everybody may join."""
    from aftermath.config.chain_values import checkpoint_of
    from aftermath.owner.open_run import check_open_run

    if change.config is None:
        return
    rules = change.config.config
    start = (
        checkpoint_of(change.config.llm.checkpoint)
        if change.kept_checkpoint(model) is None
        else None
    )
    check_open_run(
        run_id,
        overlap=rules.overlap,
        init_min_clients=rules.init_min_clients,
        checkpoint=start,
    )


async def _send(
    chain: SignedCluster, change: Change, run: Run, model: Model, *, as_json: bool
) -> dict[str, Any]:
    """Show the changes and send them, if any. Return both as JSON types.

    Raises CannotChange or Refused if the run does not accept the change.
    """
    from aftermath.chain.dry_run import DryRunReport
    from aftermath.owner.change import default_keys, differences

    steps = change.instructions(chain.coordinator.ix, run, model)
    changed_keys = differences(change, run, model)
    changes = [asdict(item) for item in changed_keys]
    announce(run.run_id, changed_keys, default_keys(change, run, model), as_json=as_json)
    try:
        signatures = await chain.sender.send_packed(steps if changed_keys else [])
    except DryRunReport as rehearsed:
        rehearsed.output["changes"] = changes
        raise
    return {"changes": changes, "signatures": [str(item) for item in signatures]}


def _warn(kept_checkpoint: Checkpoint | None, warnings: list[str]) -> None:
    """Print warnings on stderr. The run keeps `kept_checkpoint`, if any, instead of the file's."""
    if kept_checkpoint:
        note(
            f"the run keeps the checkpoint {kept_checkpoint.repo}, which its members recorded; to start from the "
            "file's, on the Hub or in a directory, pass --switch-to-hub"
        )
    for warning in warnings:
        note(f"warning: {warning}")


def _read(path: Path | None) -> tuple[RunConfig | None, Shape | None, str]:
    """Return the config with its data hash, the model's shape, and a warning about the data.

    Raises ConfigError, and errors of the checkpoint.
    """
    from aftermath.config.document import load_config
    from aftermath.owner.agreed_data import with_agreed_data
    from aftermath.owner.schema import shape_of

    if path is None:
        return None, None, ""
    config = load_config(path)
    shape = shape_of(config)
    config, data_warning = with_agreed_data(config, shape.vocab_size)
    return config, shape, data_warning


def announce(
    run_id: str,
    changed_keys: list[Difference],
    default_keys: frozenset[str] | None,
    *,
    as_json: bool,
) -> None:
    """Print the changes on stderr; with --json they are in the result.

    `default_keys`: keys of a first config with default values, of which only the names are shown.
    None if the run already has a config.
    """
    if not changed_keys:
        note(f"run {run_id} has these settings already: nothing is sent")
    elif as_json:
        return
    elif default_keys is None:
        aside(
            listing(
                ("key", "is", "will be"),
                [[change.key, change.old, change.new] for change in changed_keys],
            )
        )
    else:
        rows = [
            [change.key, change.new] for change in changed_keys if change.key not in default_keys
        ]
        aside(listing(("key", "will be"), rows))
        if defaults := [change.key for change in changed_keys if change.key in default_keys]:
            note(f"and {counted(len(defaults), 'default')}: {', '.join(defaults)}")


def _for_people(data: dict[str, Any], shape: Shape | None) -> Table:
    """Return the result as a table, without the changes and warnings printed before."""
    rows = {name: value for name, value in data.items() if name not in ("warnings", "changes")}
    if shape:
        rows["bytes_per_round"] = shape.size_lines
    return facts(rows)


def _data(run: Run, model: Model, shape: Shape | None) -> dict[str, Any]:
    """Return the run's present settings as JSON types."""
    return {
        "run_id": run.run_id,
        "name": model.metadata.name,
        "description": model.metadata.description,
        "num_parameters": model.metadata.num_parameters,
        "vocab_size": model.metadata.vocab_size,
        "tiers": list(model.tier_widths),
        "schema_hash": model.schema_hash.hex(),
        "data_hash": model.data_location.files_hash,
        "bytes_per_round": shape.bytes_per_round if shape else None,
        "step": run.trained_steps,
        "total_steps": run.config.total_steps,
    }
