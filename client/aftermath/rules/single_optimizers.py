"""Optimizers for one machine. `train-local` uses them as baselines. A run cannot use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from aftermath.rules.optimizer import REQUIRED, Clip, Optimizer, SettingKey, WeightDecay


@dataclass(frozen=True)
class AdamWAlone(Optimizer):
    """AdamW on one machine. Nothing is compressed."""

    TABLE = "AdamW"
    SUMMARY = "Not supported in a run: AdamW has no results to exchange."
    ENGINE = "aftermath.optim.inner_optimizer:adamw_of"
    EXCHANGED = False
    IN_FILE: ClassVar[Mapping[str, Any]] = {
        "betas": REQUIRED,
        "weight_decay": REQUIRED,
        "eps": REQUIRED,
        "clip": None,
    }

    betas: Annotated[
        tuple[float, float],
        SettingKey("betas", "AdamW's beta1 and beta2, each below 1.", least=0, below=1),
    ] = (0.9, 0.95)
    weight_decay: WeightDecay = 0.0
    eps: Annotated[
        float, SettingKey("eps", "AdamW's epsilon, which avoids a division by zero.", least=0)
    ] = 1e-8
    clip: Clip = 1.0

    @property
    def usual_rate(self) -> float:
        """Return the rate of the inner steps of SparseLoCo."""
        return 2e-3


@dataclass(frozen=True)
class MuonAlone(Optimizer):
    """Muon with AdamW for vectors and tables. A config file cannot name it."""

    TABLE = "Muon"
    ENGINE = "aftermath.optim.muon:muon_of"
    EXCHANGED = False
    IN_CONFIG = False

    clip: Clip = 1.0

    @property
    def usual_rate(self) -> float:
        """Return the rate of the inner steps of SparseLoCo."""
        return 2e-2
