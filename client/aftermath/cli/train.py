"""`train`: join a run and train. Its options are the fields of `TrainSettings`."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from aftermath.base.signals import hear_ignored_interrupts
from aftermath.cli.command import (
    OptionGroup,
    Setting,
    command,
    keyword,
    run_in_loop,
    setting_option,
    settings_of,
)
from aftermath.cli.error_report import reporting
from aftermath.cli.options import (
    TRAINING,
    AccessOptions,
    Authorizer,
    Device,
    DryRun,
    MaxBond,
    MemberTier,
    RunId,
    RunOwner,
    SigningOptions,
)
from aftermath.cli.present import completed_text
from aftermath.p2p.relay import relay_named
from aftermath.replica.pass_size import AUTO
from aftermath.train.settings import TrainSettings

ENVIRONMENT_ONLY = {"hub_token": "HF_TOKEN"}
"""Secrets come from variables, because every user of the machine can read arguments."""


def _sequences(value: object) -> int:
    """auto, or a whole number of at least 1"""
    text = str(value)
    if text == "auto":
        return AUTO
    if not re.fullmatch(r"[0-9]{1,6}", text) or not int(text):
        raise ValueError(text)
    return int(text)


PARSERS = {"micro_batch_size": _sequences, "iroh_relay": relay_named}
"""Parsers of options that are a number or a word. Errors quote their docstrings."""

SHARED = (
    get_type_hints(SigningOptions, include_extras=True)
    | get_type_hints(AccessOptions, include_extras=True)
    | {
        "run_id": RunId,
        "authorizer": Authorizer,
        "owner": RunOwner,
        "max_bond": MaxBond,
        "device": Device,
        "matformer_tier": MemberTier,
    }
)
"""Settings that other commands have as options too."""

SHORT_FLAGS = {"identity_secret_key_path": "-i"}
PANELS = (
    ("Peers", ("identity", "bind_p2p", "iroh", "discovery", "peer", "max_concurrent")),
    (
        TRAINING,
        (
            *(
                "data_par",
                "tensor_par",
                "threads",
                "micro_batch",
                "activation",
                "matformer_load",
            ),
            *("precision", "compile", "grad_accum"),
        ),
    ),
    ("Testing", ("dummy_training", "fault_")),
    ("Checkpoints", ("checkpoint_", "hub_", "delete_old", "keep_steps", "optimizer_state")),
    (
        "Progress",
        (
            *("logs", "write_", "events_dir", "metrics_", "wandb_", "trackio_"),
            *("prompt_", "eval_", "optim_stats"),
        ),
    ),
)


def _panel(name: str) -> str | None:
    return next((panel for panel, prefixes in PANELS if name.startswith(prefixes)), None)


def _flags(setting: Setting) -> tuple[str, ...]:
    flag = "--" + setting.name.replace("_", "-")
    if isinstance(setting.default, bool):
        return (f"{flag}/--no-{flag[2:]}",)
    return (flag, SHORT_FLAGS[setting.name]) if setting.name in SHORT_FLAGS else (flag,)


def settings_options() -> list[inspect.Parameter]:
    """Return one option per field of `TrainSettings`. Its environment variable is its name in
    capitals.
    """
    options = []
    for setting in settings_of(TrainSettings):
        name = setting.name
        if name in SHARED:
            options.append(keyword(name, SHARED[name], setting.default))
        elif name not in ENVIRONMENT_ONLY:
            flags = _flags(setting)
            parser = PARSERS.get(name)
            options.append(
                setting_option(
                    setting, *flags, panel=_panel(name), envvar=name.upper(), parser=parser
                )
            )
    return options


def build_settings(**values: Any) -> TrainSettings:
    """Return settings from parsed options and the environment's secrets."""
    secrets = {
        name: os.environ[variable]
        for name, variable in ENVIRONMENT_ONLY.items()
        if os.environ.get(variable)
    }
    return TrainSettings(**values | secrets)


@command(
    "train",
    example="aftermath-solana train --run-id demo --wallet-private-key-path wallet.json --matformer-tier 1",
    groups={"settings": OptionGroup(settings_options, build_settings)},
)
def train(
    settings: TrainSettings,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json", help="Print events as JSON lines (--logs json), and an error as JSON."
        ),
    ] = False,
    dry_run: DryRun = False,
) -> NoReturn:
    """Join a run and train until it ends.

    Trains this member's share of every round, and exchanges results with the other members. Ctrl-C
    leaves the run on chain and exits 0, or 130 before PyTorch is loaded. With several devices the
    member has a process on each: --device cuda:0,1,2,3. Exits 11 if the run does not admit the
    wallet, and 12 if trained steps are lost with this member; a restart does not help then.

    --dry-run runs the checks of can-join and prints what the join would cost and what comes back.
    It joins nothing, makes no directory, requests no test SOL, and exits as can-join does.
    """
    if dry_run:
        from aftermath.cli.join_dry_run import dry_run_join

        raise run_in_loop(dry_run_join(settings))
    from aftermath.train.session import run_member

    take_part(settings, partial(run_member, complete=completed_text), as_json=json_output)


def take_part(
    settings: TrainSettings, run_member: Callable[[TrainSettings], None], *, as_json: bool
) -> NoReturn:
    """Train, print an error if there is one, and end the process with its exit code."""
    code = 0
    hear_ignored_interrupts()
    try:
        with reporting(as_json=as_json):
            run_member(replace(settings, logs="json") if as_json else settings)
    except typer.Exit as ending:
        code = ending.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a computation may still block its thread, and its result is not needed
