"""SparseLoCo: its settings, and the keys and options that set them.

The defaults send few numbers, for slow connections. docs/experiments.md says what to choose for
faster ones. Source: Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo" (arXiv
2508.15706).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from aftermath.rules.limits import MAX_INNER_STEPS, MAX_OUTER_MOMENTUM, MAX_OUTER_RATE
from aftermath.rules.optimizer import (
    Chunk,
    Clip,
    Compressed,
    Decay,
    InnerOptimizerName,
    LabOption,
    SettingKey,
    TopK,
    TopKEmbeddings,
    WeightDecay,
)

DivisorName = Literal["keepers", "all", "root"]
"""Divisor of the sum of a coefficient's values.

`keepers`: members that sent the coefficient. `all`: all results of its level. `root`: the geometric
mean of both.
"""

REACH: dict[InnerOptimizerName, float] = {"adamw": 2.0, "muon": 0.5}
"""Cap of one member's value, in learning rates per inner step.

It limits how far one member can move the model, and reduces the overshoot if several residuals
contain the same change (docs/experiments.md).
"""
_RATES: dict[InnerOptimizerName, float] = {"adamw": 2e-3, "muon": 2e-2}


@dataclass(frozen=True)
class SparseLoCo(Compressed):
    """SparseLoCo: take several inner steps, then share the top-k changes per chunk."""

    TABLE = "SparseLoCo"
    SUMMARY = "Several steps per round, for long rounds."
    ENGINE = "aftermath.optim.sparseloco:SparseLoCoParts"
    OVERLAP = 0
    LATE = (
        "SparseLoCo learns less with overlap, because members train on weights that lack the others' latest results. "
        "Overlap pays only if results travel for about as long as a round trains"
    )
    RECIPE = "solana-test/light-config.toml"
    # The on-chain spec leaves out a key whose default is None.
    IN_FILE: ClassVar[Mapping[str, Any]] = {"outer_momentum": None}
    LATER = frozenset({"outer_momentum"})
    SENTENCES: ClassVar[Mapping[str, str]] = {
        "InnerStepsOutOfRange": "SparseLoCo needs inner_steps between 1 and 1024.",
        "OuterRateOutOfRange": (
            "SparseLoCo needs outer_lr above 0 and at most 64, and orthogonal_lr at most 64."
        ),
        "OuterMomentumOutOfRange": "SparseLoCo needs outer_momentum from 0 to 0.99.",
        "ValueBitsInvalid": "SparseLoCo needs value_bits 1 or 2.",
    }

    inner_steps: Annotated[
        int,
        SettingKey(
            "inner_steps",
            "Steps of a member in a round. Its share is cut into one part per step.",
            "steps",
            least=1,
            most=MAX_INNER_STEPS,
            rule="InnerStepsOutOfRange",
        ),
        LabOption("inner_steps", "optimizer steps per share."),
    ] = 4
    inner_optimizer: Annotated[
        InnerOptimizerName,
        SettingKey("inner_optimizer", "Inner optimizer: AdamW or Muon."),
        LabOption("inner_optimizer", "optimizer of these steps."),
    ] = "adamw"
    outer_lr: Annotated[
        float,
        SettingKey(
            "outer_lr",
            "Outer learning rate: factor of the members' mean, unless `orthogonal_lr` applies.",
            above=0,
            most=MAX_OUTER_RATE,
            rule="OuterRateOutOfRange",
        ),
        LabOption("outer_lr", "factor of the applied mean."),
    ] = 1.0
    outer_momentum: Annotated[
        float,
        SettingKey(
            "outer_momentum",
            "Nesterov momentum of the members' mean, in steps of 1/1024. Off (0) by default. It "
            "takes 8 bytes per parameter in memory, in checkpoints and for joiners.",
            least=0,
            most=MAX_OUTER_MOMENTUM,
            rule="OuterMomentumOutOfRange",
            example=0.6,
        ),
        LabOption("outer_momentum", "Nesterov momentum of the applied mean. 0 applies the mean."),
    ] = 0.0
    divisor: Annotated[
        DivisorName,
        SettingKey(
            "divisor",
            "Divisor of the sum of results: results with the value (keepers), all results, or "
            "their root. `root` is the square root of the product of both numbers.",
        ),
        LabOption(
            "mean",
            "divisor of the sum of results: the members that sent the coefficient (keepers), all "
            "members (all), or the root of both numbers' product (root).",
        ),
    ] = "keepers"
    orthogonal_lr: Annotated[
        float,
        SettingKey(
            "orthogonal_lr",
            "Outer learning rate of hidden matrices along the polar factor of the mean (Muon). "
            "0: they use outer_lr and the mean.",
            "learning rates",
            least=0,
            most=MAX_OUTER_RATE,
            rule="OuterRateOutOfRange",
            example=15.0,
        ),
        LabOption(
            "orthogonal_lr",
            "step of hidden matrices along the polar factor of the mean, like Muon, in learning "
            "rates. 0 applies the mean itself.",
        ),
    ] = 0.0
    bits: Annotated[
        int,
        SettingKey(
            "value_bits",
            "Bits per sent value.",
            "bits",
            least=1,
            most=2,
            rule="ValueBitsInvalid",
        ),
        LabOption("value_bits", "bits per value of a result.", choices=("1", "2")),
    ] = 2
    decay: Decay = 0.95
    chunk: Chunk = 64
    topk: TopK = 32
    topk_embeddings: TopKEmbeddings = 32
    weight_decay: WeightDecay = 0.0
    """Weight decay of the inner optimizer."""
    clip: Clip = 1.0

    @property
    def usual_rate(self) -> float:
        """Return the usual rate of the inner optimizer."""
        return _RATES[self.inner_optimizer]

    @property
    def moments(self) -> int:
        """Return the moments per number of a hidden matrix. Other parameters always have two."""
        return {"adamw": 2, "muon": 1}[self.inner_optimizer]
