"""The options of `train-local` as one class, from which the command line takes them.

None means that the user did not set the option. The value then comes from the config file, or
without one from the default in the description.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from annotated_doc import Doc

from aftermath.base.bounded import U32_MAX, NumberLimits
from aftermath.replica.options import COMPILE, PRECISION, Compile, Precision
from aftermath.rules import distro, optimizers, sparseloco
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_INNER_STEPS, MAX_SEQ_LEN
from aftermath.rules.sparseloco import DivisorName, InnerOptimizerName

OptimizerName = Literal[optimizers.OptimizerName, "muon"]
ScheduleName = Literal["constant", "cosine", "stable"]

RATES: dict[str, float] = {"distro": 1.5e-3, "sparseloco": 2e-3, "adamw": 2e-3, "muon": 2e-2}
ALONE = tuple(
    name for name in get_args(OptimizerName) if name not in get_args(optimizers.ExchangedName)
)
"""Optimizers that train on one machine. With the others, members exchange results."""
OVERLAPS = {"distro": "1", "sparseloco": "0"}
"""Default of --overlap by optimizer."""
TOTAL_BATCH = 32
STEPS = 1000
SEQ_LEN = 512
_RATES = ", ".join(f"{rate:g} for {name}" for name, rate in RATES.items())


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
            "Default: 1, or 0 with sparseloco."
        ),
    ] = None
    reject: Annotated[
        int, NumberLimits(0, 99), Doc("Percentage of results to reject. 0 accepts all.")
    ] = 0

    topk: Annotated[
        int | None,
        NumberLimits(1, 65535),
        Doc(
            f"Coefficients that a result keeps per block. Default: {distro.TOPK} with distro, "
            f"{sparseloco.TOPK} with sparseloco."
        ),
    ] = None
    topk_embeddings: Annotated[
        int | None,
        NumberLimits(1, 65535),
        Doc("--topk for the token embedding and the output head. Default: --topk."),
    ] = None
    feedback_decay: Annotated[
        float | None,
        Doc(
            "Factor of the residual (what was not sent) per round. Default: "
            f"{distro.DECAY:g} with distro, {sparseloco.DECAY:g} with sparseloco."
        ),
    ] = None
    inner_steps: Annotated[
        int | None,
        NumberLimits(1, MAX_INNER_STEPS),
        Doc(f"sparseloco: optimizer steps per share. Default: {sparseloco.INNER_STEPS}."),
    ] = None
    inner_optimizer: Annotated[
        InnerOptimizerName | None,
        Doc(f"sparseloco: optimizer of these steps. Default: {sparseloco.INNER_OPTIMIZER}."),
    ] = None
    value_bits: Annotated[
        Literal["1", "2"] | None,
        Doc(f"sparseloco: bits per value of a result. Default: {sparseloco.VALUE_BITS}."),
    ] = None
    outer_lr: Annotated[
        float | None,
        Doc(f"sparseloco: factor of the applied mean. Default: {sparseloco.OUTER_LR:g}."),
    ] = None
    mean: Annotated[
        DivisorName | None,
        Doc(
            "sparseloco: divisor of the sum of results: the members that sent the coefficient "
            "(keepers), all members (all), or the root of both numbers' product (root). "
            "Default: keepers."
        ),
    ] = None
    orthogonal_lr: Annotated[
        float | None,
        Doc(
            "sparseloco: step of hidden matrices along the polar factor of the mean, like Muon, in "
            f"learning rates. 0 applies the mean itself. Default: {sparseloco.ORTHOGONAL_LR:g}."
        ),
    ] = None

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
