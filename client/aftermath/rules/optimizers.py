"""The registry of optimizers, and the two that train on one machine only.

Packages add optimizers by the entry points `aftermath.optimizers`. Configs, options, pages and
errors derive from the registered classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import REQUIRED, SENTENCES, Clip, Optimizer, SettingKey, WeightDecay
from aftermath.rules.sparseloco import SparseLoCo


@dataclass(frozen=True)
class AdamWAlone(Optimizer):
    """AdamW on one machine, the baseline of `train-local`. A run cannot use it."""

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
    """Muon on one machine, with AdamW for vectors and tables. A config file cannot name it."""

    TABLE = "Muon"
    ENGINE = "aftermath.optim.muon:muon_of"
    EXCHANGED = False
    IN_CONFIG = False

    clip: Clip = 1.0

    @property
    def usual_rate(self) -> float:
        """Return the rate of the inner steps of SparseLoCo."""
        return 2e-2


GROUP = "aftermath.optimizers"
BUILT_IN: tuple[type[Optimizer], ...] = (Distro, SparseLoCo, AdamWAlone, MuonAlone)
NAMES = tuple(optimizer.kind() for optimizer in BUILT_IN)
WITH_RECIPE = tuple(one.kind() for one in BUILT_IN if one.RECIPE)


@cache
def optimizers() -> Mapping[str, type[Optimizer]]:
    """Return the optimizers by kind, those of installed packages too. Raises BadExtension."""
    # Read package metadata lazily, because help pages import this module and must be fast.
    from aftermath.base.extensions import BadExtension, extensions

    registered = {optimizer.kind(): optimizer for optimizer in BUILT_IN}
    for name, optimizer in extensions(GROUP, Optimizer).items():
        taken = optimizer.kind() in registered
        if taken or name != optimizer.TABLE:
            why = "the name of a built-in one" if taken else f"not its TABLE, {optimizer.TABLE}"
            raise BadExtension(
                f"an installed package registers the optimizer {name}, which is {why}",
                "Update the package that adds it, or uninstall it",
            )
        registered[optimizer.kind()] = optimizer
    return registered


def configurable() -> Mapping[str, type[Optimizer]]:
    """Return the optimizers that a config file may name, by their tables in alphabetical order."""
    kinds = {one.TABLE: one for one in optimizers().values() if one.IN_CONFIG}
    return dict(sorted(kinds.items()))


def exchanged_shown() -> str:
    """Return the names of the optimizers with which members exchange results."""
    return " or ".join(one.shown() for one in optimizers().values() if one.EXCHANGED)


def exchanged_tables() -> str:
    """Return the config tables of the optimizers with which members exchange results."""
    tables = (one.TABLE for one in optimizers().values() if one.EXCHANGED)
    return " or ".join(f"[model.LLM.optimizer.{table}]" for table in tables)


def sentences() -> dict[str, str]:
    """Return the sentence of every rule of optimizers, by the name of the rule."""
    texts = dict(SENTENCES)
    for optimizer in optimizers().values():
        texts |= optimizer.SENTENCES
    return texts
