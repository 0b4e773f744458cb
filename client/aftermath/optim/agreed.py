"""The schema of a run: the owner's command that puts its hash on chain and every member build it through here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.optim.schema import SETTINGS, Schema, SchemaError, Settings, build_schema
from aftermath.rules.model import Optimizer
from aftermath.rules.optimizers import EXCHANGED_TABLES


def agreed_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Optimizer) -> Schema:
    """The schema of a run's checkpoint (its config.json) under the settings that its Model account holds.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return build_schema(hf_config, tiers, settings_of(optimizer))


def settings_of(optimizer: Optimizer) -> Settings:
    """What a run's members agree on, out of the numbers of its Model account. Raises SchemaError."""
    if (settings := SETTINGS.get(optimizer.kind)) is None:
        raise SchemaError(
            f"members exchange no results with an optimizer of kind {optimizer.kind.name.lower()}",
            f"Use {EXCHANGED_TABLES} in the run's config file",
        )
    return settings.of(optimizer)
