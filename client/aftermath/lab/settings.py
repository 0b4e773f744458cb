"""The options of `train-local` as one class, from which the command line takes them.

None means that the user did not set the option. The value then comes from the config file, or
without one from the default in the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_doc import Doc

from aftermath.base.bounded import U32_MAX, NumberLimits
from aftermath.replica.options import COMPILE, PRECISION, Compile, Precision
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_SEQ_LEN
from aftermath.rules.optimizer import Optimizer, OptimizerSetting
from aftermath.rules.optimizers import BUILT_IN, NAMES

ScheduleName = Literal["constant", "cosine", "stable"]
if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = Literal[NAMES]
TOTAL_BATCH = 32
STEPS = 1000
SEQ_LEN = 512
_RATES = ", ".join(f"{one().usual_rate:g} for {one.kind()}" for one in BUILT_IN)
_AT_ONCE = " and ".join(one.kind() for one in BUILT_IN if one.EXCHANGED and not one.OVERLAP)


@dataclass(frozen=True, kw_only=True)
class LabSettings:
    """Settings of one `aftermath-solana train-local` process."""

    config_path: Annotated[
        Path | None, Doc("A run's config file; options on the command line override it.")
    ] = None
    model: Annotated[
        Path | None,
        Doc(
            "Model to start from: a checkpoint directory, or OWNER/NAME on the Hub. "
            "Required without a config file."
        ),
    ] = None
    data_path: Annotated[
        Path | None, Doc("Token file or directory of token files. Required without a config file.")
    ] = None
    token_bytes: Annotated[
        Literal["2", "4"] | None, Doc("Bytes per token in these files. Default: 2.")
    ] = None
    seq_len: Annotated[
        int | None, NumberLimits(2, MAX_SEQ_LEN), Doc(f"Tokens per sequence. Default: {SEQ_LEN}.")
    ] = None

    optimizer: Annotated[OptimizerName | None, Doc("Optimizer. Default: distro.")] = None
    lr: Annotated[float | None, Doc(f"Highest learning rate. Default: {_RATES}.")] = None
    lr_schedule: Annotated[
        ScheduleName | None,
        Doc(
            "Learning rate after the warm-up. stable falls to 0 over the last fifth of the steps, "
            "cosine falls to a tenth of the highest rate. Default: stable."
        ),
    ] = None
    warmup_steps: Annotated[
        int | None,
        NumberLimits(0, U32_MAX),
        Doc("Steps until the highest rate. Default: a twentieth of --steps."),
    ] = None
    steps: Annotated[
        int | None,
        NumberLimits(1, U32_MAX),
        Doc(f"Steps to train. Does not stretch a config's schedule. Default: {STEPS}."),
    ] = None
    total_batch: Annotated[
        int | None,
        NumberLimits(1, 65535),
        Doc(f"Sequences per step, over all members. Default: {TOTAL_BATCH}."),
    ] = None
    micro_batch: Annotated[int, NumberLimits(1), Doc("Sequences in one forward pass.")] = 8
    seed: Annotated[
        int | None,
        NumberLimits(0, 2**63 - 1),
        Doc("Seed of the data order and of the choice of rejected results. Default: 0."),
    ] = None

    members: Annotated[
        int | None,
        NumberLimits(1, MAX_MEMBERS),
        Doc("Number of replicas, each with a share of the batch. Default: one per --tiers entry."),
    ] = None
    tiers: Annotated[
        str | None,
        Doc(
            "Tiers of the members, for example 0,1,2. A list shorter than --members repeats. "
            "Default: 0."
        ),
    ] = None
    shares: Annotated[
        str | None,
        Doc("Sequences per step of each member, for example 3,4,5. Default: as equal as possible."),
    ] = None
    overlap: Annotated[
        Literal["0", "1"] | None,
        Doc(
            "Rounds that are trained before a round's results are applied. 0 applies them at once. "
            f"Default: 1, or 0 with {_AT_ONCE}."
        ),
    ] = None
    inner_state: Annotated[
        Literal["keep", "reset"] | None,
        Doc(
            "sparseloco: inner optimizer's state at each new round: keep (as in a run) or reset. "
            "Default: keep."
        ),
    ] = None
    reject: Annotated[
        int, NumberLimits(0, 99), Doc("Percentage of results to reject. 0 accepts all.")
    ] = 0

    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of optimizers that the user set, by their names (`OPTIMIZER_OPTIONS`)."""

    held_out_path: Annotated[
        Path | None, Doc("Token files for the held-out loss. Not trained on.")
    ] = None
    eval_every: Annotated[
        int, NumberLimits(0), Doc("Steps between held-out losses. 0 measures only at the end.")
    ] = 0
    eval_sequences: Annotated[int, NumberLimits(1), Doc("Sequences per held-out loss.")] = 256

    out: Annotated[
        Path | None,
        Doc("Directory for events, plot and checkpoint, and for the state needed to resume."),
    ] = None
    save_every: Annotated[int, NumberLimits(1), Doc("Steps between two saved states in --out.")] = (
        100
    )
    device: Annotated[str, Doc("auto, cpu, mps, cuda or cuda:X,Y (the first index is used).")] = (
        "auto"
    )
    threads: Annotated[int, NumberLimits(0), Doc("CPU threads. 0 keeps PyTorch's choice.")] = 0
    precision: Annotated[Precision, Doc(PRECISION)] = "auto"
    compile: Annotated[Compile, Doc(COMPILE)] = "auto"
    stack_members: Annotated[
        Literal["auto", "on", "off"],
        Doc(
            "Train members of a tier at once, as one model with stacked weights, if they make inner "
            "steps. This changes how their results round. auto: only on CUDA."
        ),
    ] = "auto"


def options_of(optimizer: type[Optimizer]) -> dict[str, OptimizerSetting]:
    """Return the settings of an optimizer that an option sets, by the option."""
    return {one.option.name: one for one in optimizer.settings() if one.option is not None}


def _optimizer_options() -> dict[str, Any]:
    """Return the type, limits and description of each option of an optimizer, by its name."""
    uses: dict[str, list[tuple[type[Optimizer], OptimizerSetting]]] = {}
    for optimizer in BUILT_IN:
        for name, setting in options_of(optimizer).items():
            uses.setdefault(name, []).append((optimizer, setting))
    return {name: _annotated(users) for name, users in uses.items()}


def _annotated(users: list[tuple[type[Optimizer], OptimizerSetting]]) -> Any:
    setting = users[0][1]
    option = setting.option
    assert option is not None
    defaults = {optimizer.kind(): _shown(one.default) for optimizer, one in users}
    only = f"{users[0][0].kind()}: " if len(users) == 1 else ""
    default = (
        f"--{setting.key.follows}"
        if setting.key.follows
        else next(iter(defaults.values()))
        if only
        else ", ".join(f"{default} with {name}" for name, default in defaults.items())
    )
    marks: list[Any] = [Doc(f"{only}{option.text} Default: {default}.")]
    if setting.kind is int and not option.choices:
        most = setting.key.most
        marks.append(NumberLimits(int(setting.key.least or 0), None if most is None else int(most)))
    kind: Any = Literal[option.choices] if option.choices else setting.kind
    return Annotated[(kind | None, *marks)]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


OPTIMIZER_OPTIONS: Mapping[str, Any] = _optimizer_options()


def with_options(**options: Any) -> LabSettings:
    """Return the settings of all options, those of optimizers too."""
    optimizer_options = {
        name: options.pop(name) for name in OPTIMIZER_OPTIONS if options.get(name) is not None
    }
    others = {name: value for name, value in options.items() if name not in OPTIMIZER_OPTIONS}
    return LabSettings(**others, options=optimizer_options)
