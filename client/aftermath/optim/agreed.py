"""Build the schema of a run from its Model account.

The owner builds it to put its hash on chain, and every member builds it to compare that hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.optim.schema import SETTINGS, Schema, SchemaError, Settings, build_schema
from aftermath.rules.model import Optimizer
from aftermath.rules.optimizers import EXCHANGED_TABLES


def agreed_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Optimizer) -> Schema:
    """Return the schema of a run from its config.json and its Model account's settings.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return build_schema(hf_config, tiers, settings_of(optimizer))


def settings_of(optimizer: Optimizer) -> Settings:
    """Return the agreed settings from the numbers of a Model account. Raises SchemaError."""
    if (settings := SETTINGS.get(optimizer.kind)) is None:
        raise SchemaError(
            f"members exchange no results with an optimizer of kind {optimizer.kind.name.lower()}",
            f"Use {EXCHANGED_TABLES} in the run's config file",
        )
    return settings.of(optimizer)
