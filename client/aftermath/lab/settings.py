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
            "Model to start from: a checkpoint directory, or OWNER/NAME on the Hub. Needed without a config file."
        ),
    ] = None
    data_path: Annotated[
        Path | None, Doc("Token file or directory of them; needed without a config file.")
    ] = None
    token_bytes: Annotated[
        Literal["2", "4"] | None, Doc("Bytes of a token in these files; else 2.")
    ] = None
    seq_len: Annotated[
        int | None, NumberLimits(2, MAX_SEQ_LEN), Doc(f"Tokens of a sequence; else {SEQ_LEN}.")
    ] = None

    optimizer: Annotated[OptimizerName | None, Doc("What learns from gradients; else distro.")] = (
        None
    )
    lr: Annotated[float | None, Doc(f"Highest learning rate; else {_RATES}.")] = None
    lr_schedule: Annotated[
        ScheduleName | None,
        Doc("stable falls to 0 over the last fifth of the steps, cosine to a tenth; else stable."),
    ] = None
    warmup_steps: Annotated[
        int | None,
        NumberLimits(0, U32_MAX),
        Doc("Steps until the highest rate; else a twentieth of them."),
    ] = None
    steps: Annotated[
        int | None,
        NumberLimits(1, U32_MAX),
        Doc(f"Steps to train; else {STEPS}. A config's schedule keeps its own length."),
    ] = None
    total_batch: Annotated[
        int | None,
        NumberLimits(1, 65535),
        Doc(f"Sequences of a step, of all members; else {TOTAL_BATCH}."),
    ] = None
    micro_batch: Annotated[int, NumberLimits(1), Doc("Sequences in one forward pass.")] = 8
    seed: Annotated[
        int | None,
        NumberLimits(0, 2**63 - 1),
        Doc("Of the order of the data and of what is rejected; else 0."),
    ] = None

    members: Annotated[
        int | None,
        NumberLimits(1, MAX_MEMBERS),
        Doc("Replicas, each with a share of the batch; else 1."),
    ] = None
    tiers: Annotated[
        str | None,
        Doc(
            "Tiers of the members, for example 0,1,2; fewer than members are taken by turns. Else 0."
        ),
    ] = None
    shares: Annotated[
        str | None,
        Doc("Sequences of each member, for example 3,4,5; else as equal as they can be."),
    ] = None
    overlap: Annotated[
        Literal["0", "1"] | None,
        Doc(
            "Rounds that pass before results are applied, beyond the next; else 1, and 0 with sparseloco."
        ),
    ] = None
    reject: Annotated[
        int, NumberLimits(0, 99), Doc("Percent of the results that are not accepted.")
    ] = 0

    topk: Annotated[
        int | None,
        NumberLimits(1, 65535),
        Doc(
            f"Coefficients that a result keeps of a block; else {distro.TOPK} with distro and "
            f"{sparseloco.TOPK} with sparseloco."
        ),
    ] = None
    topk_embeddings: Annotated[
        int | None,
        NumberLimits(1, 65535),
        Doc("The same, of the token embedding and the output head; else as many."),
    ] = None
    feedback_decay: Annotated[
        float | None,
        Doc(
            "Part of what was not sent that is still there a round later; else "
            f"{distro.DECAY:g} with distro and {sparseloco.DECAY:g} with sparseloco."
        ),
    ] = None
    inner_steps: Annotated[
        int | None,
        NumberLimits(1, MAX_INNER_STEPS),
        Doc(f"sparseloco: steps on parts of a share; else {sparseloco.INNER_STEPS}."),
    ] = None
    inner_optimizer: Annotated[
        InnerOptimizerName | None,
        Doc(f"sparseloco: what makes these steps; else {sparseloco.INNER_OPTIMIZER}."),
    ] = None
    value_bits: Annotated[
        Literal["1", "2"] | None,
        Doc(f"sparseloco: bits of a value in a result; else {sparseloco.VALUE_BITS}."),
    ] = None
    outer_lr: Annotated[
        float | None,
        Doc(f"sparseloco: how much of the mean is applied; else {sparseloco.OUTER_LR:g}."),
    ] = None
    mean: Annotated[
        DivisorName | None,
        Doc(
            "sparseloco: over the members that kept a coefficient (keepers), over all, or by the root of both "
            "numbers' product; else keepers."
        ),
    ] = None
    orthogonal_lr: Annotated[
        float | None,
        Doc(
            "sparseloco: how many learning rates hidden matrices go along the polar factor of the mean, as "
            f"Muon does; 0 goes by the mean itself; else {sparseloco.ORTHOGONAL_LR:g}."
        ),
    ] = None

    held_out_path: Annotated[
        Path | None, Doc("Token files that are measured on and not trained on.")
    ] = None
    eval_every: Annotated[
        int, NumberLimits(0), Doc("Steps between measurements; 0 measures at the end only.")
    ] = 0
    eval_sequences: Annotated[int, NumberLimits(1), Doc("Sequences of a measurement.")] = 256

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
    threads: Annotated[int, NumberLimits(0), Doc("CPU threads; 0 leaves torch's own choice.")] = 0
    precision: Annotated[Precision, Doc(PRECISION)] = "auto"
    compile: Annotated[Compile, Doc(COMPILE)] = "auto"
