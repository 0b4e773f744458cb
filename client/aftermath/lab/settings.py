"""What may be said to `train-local`: one class, from which the command line takes options and help.

Decided: None is what was not said. Then the config file counts, and without one what the descriptions name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from aftermath.base.numbers import U32_MAX
from aftermath.replica.arithmetic import COMPILE, PRECISION, Compile, Precision
from aftermath.rules import distro, optimizers, sparseloco
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_INNER_STEPS, MAX_SEQ_LEN
from aftermath.rules.sparseloco import DivisorName, InnerOptimizerName

OptimizerName = Literal[optimizers.OptimizerName, "muon"]
ScheduleName = Literal["constant", "cosine", "stable"]

RATES: dict[str, float] = {"distro": 1.5e-3, "sparseloco": 2e-3, "adamw": 2e-3, "muon": 2e-2}
ALONE = tuple(name for name in get_args(OptimizerName) if name not in get_args(optimizers.ExchangedName))
"""Optimizers of one machine; with the others, members exchange results."""
OVERLAPS = {"distro": "1", "sparseloco": "0"}
"""Rounds that results wait for, where nothing is said."""
TOTAL_BATCH, STEPS, SEQ_LEN = 32, 1000, 512
_RATES = ", ".join(f"{rate:g} for {name}" for name, rate in RATES.items())


class LabSettings(BaseModel):
    """Settings of one `aftermath-solana train-local` process."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # help lists fields and validates none

    config_path: Path | None = Field(
        None, description="A run's config file; options given beside it count instead of what it says."
    )
    model: Path | None = Field(None, description="Checkpoint directory to start from; needed without a config file.")
    data_path: Path | None = Field(None, description="Token file or directory of them; needed without a config file.")
    token_bytes: Literal["2", "4"] | None = Field(None, description="Bytes of a token in these files; else 2.")
    seq_len: int | None = Field(None, ge=2, le=MAX_SEQ_LEN, description=f"Tokens of a sequence; else {SEQ_LEN}.")

    optimizer: OptimizerName | None = Field(None, description="What learns from gradients; else distro.")
    lr: float | None = Field(None, description=f"Highest learning rate; else {_RATES}.")
    lr_schedule: ScheduleName | None = Field(
        None, description="stable falls to 0 over the last fifth of the steps, cosine to a tenth; else stable."
    )
    warmup_steps: int | None = Field(
        None, ge=0, le=U32_MAX, description="Steps until the highest rate; else a twentieth of them."
    )
    steps: int | None = Field(
        None, ge=1, le=U32_MAX, description=f"Steps to train; else {STEPS}. A config's schedule keeps its own length."
    )
    total_batch: int | None = Field(
        None, ge=1, le=65535, description=f"Sequences of a step, of all members; else {TOTAL_BATCH}."
    )
    micro_batch: int = Field(8, ge=1, description="Sequences in one forward pass.")
    seed: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Of the order of the data and of what is rejected; else 0."
    )

    members: int | None = Field(
        None, ge=1, le=MAX_MEMBERS, description="Replicas, each with a share of the batch; else 1."
    )
    tiers: str | None = Field(
        None, description="Tiers of the members, for example 0,1,2; fewer than members are taken by turns. Else 0."
    )
    shares: str | None = Field(
        None, description="Sequences of each member, for example 3,4,5; else as equal as they can be."
    )
    overlap: Literal["0", "1"] | None = Field(
        None,
        description="Rounds that pass before results are applied, beyond the next; else 1, and 0 with sparseloco.",
    )
    reject: int = Field(0, ge=0, le=99, description="Percent of the results that are not accepted.")

    topk: int | None = Field(
        None,
        ge=1,
        le=65535,
        description=f"Coefficients that a result keeps of a block; else {distro.TOPK} with distro and "
        f"{sparseloco.TOPK} with sparseloco.",
    )
    topk_embeddings: int | None = Field(
        None, ge=1, le=65535, description="The same, of the token embedding and the output head; else as many."
    )
    feedback_decay: float | None = Field(
        None,
        description="Part of what was not sent that is still there a round later; else "
        f"{distro.DECAY:g} with distro and {sparseloco.DECAY:g} with sparseloco.",
    )
    inner_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_INNER_STEPS,
        description=f"sparseloco: steps on parts of a share; else {sparseloco.INNER_STEPS}.",
    )
    inner_optimizer: InnerOptimizerName | None = Field(
        None, description=f"sparseloco: what makes these steps; else {sparseloco.INNER_OPTIMIZER}."
    )
    value_bits: Literal["1", "2"] | None = Field(
        None, description=f"sparseloco: bits of a value in a result; else {sparseloco.VALUE_BITS}."
    )
    outer_lr: float | None = Field(
        None, description=f"sparseloco: how much of the mean is applied; else {sparseloco.OUTER_LR:g}."
    )
    mean: DivisorName | None = Field(
        None,
        description="sparseloco: over the members that kept a coefficient (keepers), over all, or by the root of both "
        "numbers' product; else keepers.",
    )
    orthogonal_lr: float | None = Field(
        None,
        description="sparseloco: how many learning rates hidden matrices go along the polar factor of the mean, as "
        f"Muon does; 0 goes by the mean itself; else {sparseloco.ORTHOGONAL_LR:g}.",
    )

    held_out_path: Path | None = Field(None, description="Token files that are measured on and not trained on.")
    eval_every: int = Field(0, ge=0, description="Steps between measurements; 0 measures at the end only.")
    eval_sequences: int = Field(256, ge=1, description="Sequences of a measurement.")

    out: Path | None = Field(
        None, description="Directory for events, plot and checkpoint, and for what is needed to go on after an end."
    )
    save_every: int = Field(100, ge=1, description="Steps between two saved states in --out.")
    device: str = Field("auto", description="auto, cpu, mps, cuda or cuda:X,Y (the first index is used).")
    threads: int = Field(0, ge=0, description="CPU threads; 0 leaves torch's own choice.")
    precision: Precision = Field("auto", description=PRECISION)
    compile: Compile = Field("auto", description=COMPILE)
