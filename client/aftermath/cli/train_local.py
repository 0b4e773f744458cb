"""`train-local`: train without chain or network. Its options are the fields of `LabSettings`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from aftermath.base.outputs import refuse_standard_output
from aftermath.base.signals import on_interrupt
from aftermath.base.stdio import is_quiet
from aftermath.cli.command import OptionGroup, Setting, command, setting_option, settings_of
from aftermath.cli.present import Result, note
from aftermath.lab.settings import OPTIMIZER_OPTIONS, LabSettings, with_options

PANELS = (
    ("Model and data", ("config_path", "model", "data_path", "token_bytes", "seq_len")),
    (
        "Learning",
        (
            "optimizer",
            "lr",
            "lr_schedule",
            "warmup_steps",
            "steps",
            "total_batch",
            "micro_batch",
            "seed",
        ),
    ),
    ("Members", ("members", "tiers", "shares", "overlap", "inner_state", "reject")),
    ("Results", ("options",)),
    ("Measuring", ("held_out_path", "eval_every", "eval_sequences")),
    (
        "This machine",
        ("out", "save_every", "device", "threads", "precision", "compile", "stack_members"),
    ),
)


def lab_options() -> list[inspect.Parameter]:
    """Return an option per field of `LabSettings` and per option of an optimizer."""
    panels = {name: panel for panel, names in PANELS for name in names}
    options = []
    for setting in settings_of(LabSettings):
        own = [Setting(name, kind, None) for name, kind in OPTIMIZER_OPTIONS.items()]
        for one in own if setting.name == "options" else [setting]:
            options.append(setting_option(one, panel=panels[setting.name]))
    return options


@command(
    "train-local",
    example="aftermath-solana train-local --config-path run.toml --members 3 --tiers 0,1,2 --out runs/lab",
    groups={"settings": OptionGroup(lab_options, with_options)},
    until_interrupt=True,
)
def train_local(
    settings: LabSettings,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print events as JSON lines, and an error as JSON.")
    ] = False,
) -> Result:
    """Train on this machine alone, without chain or network.

    Trains one replica with AdamW or Muon, or the replicas of several members with DisTrO or
    SparseLoCo, as a run would. With --out you can stop it at any time: Ctrl-C ends it after the
    current step and saves, and the same command continues.
    """
    if settings.out is not None:
        refuse_standard_output(settings.out)
    if "torch" not in sys.modules:
        from aftermath.events.text import LOADING  # imports rich, which help pages do not need

        note(LOADING)
    from aftermath.lab.recipe import advice
    from aftermath.lab.resolve_recipe import recipe_of

    recipe = recipe_of(settings)
    for sentence in advice(recipe):
        note(f"warning: {sentence}")

    import torch
    from rich.console import Console

    from aftermath.events.stream import JsonLines
    from aftermath.kernels.runtime import needs_compilation
    from aftermath.lab.setup import start
    from aftermath.lab.step_lines import StepLines
    from aftermath.lab.training_loop import TrainingLoop, now
    from aftermath.replica.exactness import exact_device, keep_compiled
    from aftermath.replica.passes import arithmetic_of

    device = exact_device(settings.device)
    keep_compiled()
    arithmetic = arithmetic_of(device, settings.precision, settings.compile)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    screen = (
        JsonLines(sys.stdout, now)
        if json_output
        else StepLines(Console(soft_wrap=not sys.stdout.isatty()), quiet=is_quiet())
    )
    if recipe.agreed is not None and device.type == "cpu" and needs_compilation():
        note("compiling kernels for this processor, once: half a minute or more")
    if arithmetic.compiled:
        note("compiling the model: half a minute or more, unless it was compiled before")
    out = settings.out.expanduser().absolute() if settings.out else None
    # A CPU trains stacked members no faster.
    stacked = settings.stack_members == "on" or (
        settings.stack_members == "auto" and device.type == "cuda"
    )
    begun = start(recipe, device, arithmetic, stack_members=stacked)
    training = TrainingLoop(recipe, begun, screen, out, settings.save_every)
    if out is None:
        note("this training is not saved; to save it, pass --out DIR")
        try:
            training.run()
        finally:
            note("nothing was saved, because --out was not given")
        return Result(None, None)
    try:
        with _ending_after_the_step(training.stop):
            training.run()
    except KeyboardInterrupt:
        note(f"the same command continues from the last state saved in {out}")
        raise
    return Result(None, None)


def _ending_after_the_step(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `stop` at the first Ctrl-C, which ends after this step. A second one ends at once."""

    def stop_and_note() -> None:
        stop()
        note("ending after this step; Ctrl-C once more ends at once")

    return on_interrupt(stop_and_note)
