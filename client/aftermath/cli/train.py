"""`train`: take part in a run. Its options are the fields of `TrainSettings`, and what it does not share with other
commands is described there.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from pydantic.fields import FieldInfo

from aftermath.cli.command import OptionGroup, command, field_option, keyword
from aftermath.cli.interrupt import on_interrupt
from aftermath.cli.options import TRAINING, Authorizer, Device, MaxBond, MemberTier, RunId, SigningOptions
from aftermath.cli.present import EXIT_INTERRUPTED, note, reporting
from aftermath.p2p.relay import relay_named
from aftermath.replica.pass_size import AUTO
from aftermath.train.settings import TrainSettings

ENVIRONMENT_ONLY = {"hub_token": "HF_TOKEN"}
"""Secrets never travel in arguments, which every user of the machine can read."""


def _sequences(given: object) -> int:
    """auto, or a whole number from 1 on"""
    text = str(given)
    if text == "auto":
        return AUTO
    if not re.fullmatch(r"[0-9]{1,6}", text) or not int(text):
        raise ValueError(text)
    return int(text)


PARSERS = {"micro_batch_size": _sequences, "iroh_relay": relay_named}
"""What reads an option that is a number or a word, and says in its docstring what that may be."""

SHARED = get_type_hints(SigningOptions, include_extras=True) | {
    "run_id": RunId,
    "authorizer": Authorizer,
    "max_bond": MaxBond,
    "device": Device,
    "matformer_tier": MemberTier,
}
"""Settings that other commands have as options too: they are described there."""

SHORT_FLAGS = {"identity_secret_key_path": "-i"}
PANELS = (
    ("Peers", ("identity", "bind_p2p", "iroh", "discovery", "peer", "max_concurrent")),
    (
        TRAINING,
        (
            *("data_par", "tensor_par", "threads", "micro_batch", "activation", "matformer_load"),
            *("precision", "compile", "grad_accum"),
        ),
    ),
    ("Checkpoints", ("checkpoint_dir", "hub_", "delete_old", "keep_steps", "optimizer_state")),
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


def _flags(name: str, field: FieldInfo) -> tuple[str, ...]:
    flag = "--" + name.replace("_", "-")
    if field.annotation is bool:
        return (f"{flag}/--no-{flag[2:]}",)
    return (flag, SHORT_FLAGS[name]) if name in SHORT_FLAGS else (flag,)


def settings_options() -> list[inspect.Parameter]:
    """One option per field of `TrainSettings`, with its limits; its environment variable is its name in capitals."""
    options = []
    for name, field in TrainSettings.model_fields.items():
        if name in ENVIRONMENT_ONLY:
            continue
        default = ... if field.is_required() else field.default
        if name in SHARED:
            options.append(keyword(name, SHARED[name], default))
            continue
        parser = PARSERS.get(name)
        option = field_option(name, field, *_flags(name, field), panel=_panel(name), envvar=name.upper(), parser=parser)
        options.append(keyword(name, Annotated[field.annotation, option], default))
    return options


def build_settings(**given: Any) -> TrainSettings:
    """Settings from parsed options, which are within their limits, and the environment's secrets."""
    secrets = {name: os.environ[variable] for name, variable in ENVIRONMENT_ONLY.items() if os.environ.get(variable)}
    return TrainSettings.model_validate(given | secrets)


@command(
    "train",
    example="aftermath-solana train --run-id demo --wallet-private-key-path wallet.json --matformer-tier 1",
    groups={"settings": OptionGroup(settings_options, build_settings)},
)
def train(
    settings: TrainSettings,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines (--logs json), and an error as JSON.")
    ] = False,
) -> NoReturn:
    """Join a run and train until it ends.

    Trains this member's share of every round with the tier of the model that fits its memory, and exchanges results
    with the other members. Ctrl-C leaves the run on chain and exits 0. On several devices of this machine the member
    has a process on each: --device cuda:0,1,2,3, or to try it out --device cpu --data-parallelism 2.
    """
    with ending_at_once():
        from aftermath.train.session import run_member

    take_part(settings, run_member, as_json=json_output)


def take_part(settings: TrainSettings, run_member: Callable[[TrainSettings], None], *, as_json: bool) -> NoReturn:
    """Train, say how that ended, and end the process."""
    code = 0
    try:
        with reporting(as_json=as_json):
            run_member(settings.model_copy(update={"logs": "json"}) if as_json else settings)
    except typer.Exit as ending:
        code = ending.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a computation may still hold its thread; nothing of it is wanted any more


def ending_at_once() -> AbstractContextManager[None]:
    """Ctrl-C ends the process from within its handler: libraries swallow a KeyboardInterrupt, or abort on it, while
    they are imported.
    """

    def end() -> None:
        try:
            note("interrupted")
        finally:
            os._exit(EXIT_INTERRUPTED)

    return on_interrupt(end)
