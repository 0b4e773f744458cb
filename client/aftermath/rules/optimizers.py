"""The registry of optimizers. Packages add some by the entry points `aftermath.optimizers`.

Configs, options, pages and errors derive from the registered classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import SENTENCES, Optimizer
from aftermath.rules.single_optimizers import AdamWAlone, MuonAlone
from aftermath.rules.sparseloco import SparseLoCo

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
    found = dict(SENTENCES)
    for optimizer in optimizers().values():
        found |= optimizer.SENTENCES
    return found
