"""`train`: take part in a run. Its options are the fields of `TrainSettings`: help and defaults live there once."""

from __future__ import annotations

import inspect
import os
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from aftermath.cli.command import OptionGroup, command, keyword
from aftermath.cli.present import Result, UsageError
from aftermath.train.settings import TrainSettings

ENVIRONMENT_ONLY = {"hub_token": "HF_TOKEN"}
"""Secrets never travel in arguments, which every user of the machine can read."""

SHORT_FLAGS = {"wallet_private_key_path": "-w", "identity_secret_key_path": "-i"}
PANELS = (
    ("Cluster", ("rpc", "ws_rpc", "coordinator_program_id")),
    ("Wallet", ("wallet_private_key_path", "authorizer", "max_priority_fee")),
    ("Peers", ("identity", "bind_p2p", "iroh", "discovery", "max_concurrent")),
    ("Training", ("device", "threads", "micro_batch", "matformer")),
    ("Checkpoints", ("checkpoint_dir", "hub_", "delete_old", "keep_steps")),
    ("Progress", ("logs", "write_log", "events_dir")),
)


def _panel(name: str) -> str | None:
    return next((panel for panel, prefixes in PANELS if name.startswith(prefixes)), None)


def _flags(name: str, field: FieldInfo) -> tuple[str, ...]:
    flag = "--" + name.replace("_", "-")
    if field.annotation is bool:
        return (f"{flag}/--no-{flag[2:]}",)
    return (flag, SHORT_FLAGS[name]) if name in SHORT_FLAGS else (flag,)


def settings_options() -> list[inspect.Parameter]:
    """One option per field of `TrainSettings`; its environment variable is the field's name in capitals."""
    options = []
    for name, field in TrainSettings.model_fields.items():
        if name in ENVIRONMENT_ONLY:
            continue
        option = typer.Option(
            *_flags(name, field),
            help=field.description,
            envvar=name.upper(),
            show_envvar=False,
            rich_help_panel=_panel(name),
        )
        default = ... if field.is_required() else field.default
        options.append(keyword(name, Annotated[field.annotation, option], default))
    return options


def build_settings(**given: Any) -> TrainSettings:
    """Settings from parsed options and the environment's secrets; a value out of range is an error naming its flag."""
    secrets = {name: os.environ[variable] for name, variable in ENVIRONMENT_ONLY.items() if os.environ.get(variable)}
    try:
        return TrainSettings.model_validate(given | secrets)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "options"
        raise UsageError(f"{flag}: {first['msg']}.") from None


@command(
    "train",
    example="aftermath-solana train --run-id demo --wallet-private-key-path wallet.json --matformer-tier 1",
    groups={"settings": OptionGroup(settings_options, build_settings)},
)
def train(
    settings: TrainSettings,
    json_output: Annotated[bool, typer.Option("--json", help="The same as --logs json.", show_default=False)] = False,
) -> Result:
    """Join a run and train until it ends.

    Trains this member's share of every round with the tier of the model that fits its memory, and exchanges results
    with the other members. Ctrl-C leaves the run on chain and exits 0.
    """
    from aftermath.train.session import run_member

    return Result(None, None, run_member(settings.model_copy(update={"logs": "json"}) if json_output else settings))
