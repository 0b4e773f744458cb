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
            f"the smallest share has {smallest} of the {recipe.batch.start} sequences of a step, so "
            f"its member takes {smallest} inner steps instead of {settings.inner_steps}. Raise "
            "--total-batch, or lower --inner-steps or --members"
        )
    if settings.LATE and recipe.overlap:
        warnings.append(f"--overlap is {recipe.overlap}: {settings.LATE}. Pass --overlap 0")
    return warnings
