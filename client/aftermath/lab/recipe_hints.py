"""Warnings about unusual recipes. None of them stops a training."""

from __future__ import annotations

from aftermath.lab.recipe import Recipe
from aftermath.rules.assignment import cut


def advice(recipe: Recipe) -> list[str]:
    """Return a warning for each unusual choice in a recipe."""
    settings = recipe.agreed
    if settings is None:
        return []
    warnings = []
    smallest = min(share.len for share in cut(recipe.batch.start, list(recipe.shares)))
    if smallest < settings.inner_steps:
        warnings.append(
            f"the smallest share has {smallest} of the {recipe.batch.start} sequences of a step, and as many inner "
            f"steps, not {settings.inner_steps}: raise --total-batch, or lower --inner-steps or --members"
        )
    if settings.LATE and recipe.overlap:
        warnings.append(f"an overlap of {recipe.overlap}: {settings.LATE}; pass --overlap 0")
    return warnings
