"""Build the schema of a run from its Model account.

The owner builds it to put its hash on chain, and every member builds it to compare that hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.optim.schema import Schema, SchemaError, build_schema
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.optimizers import exchanged_tables


def agreed_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Optimizer) -> Schema:
    """Return the schema of a run from its config.json and its Model account's optimizer.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    if not optimizer.EXCHANGED:
        raise SchemaError(
            f"members with {optimizer.shown()} exchange no results, so a run cannot use it",
            f"Use {exchanged_tables()} in the run's config file",
        )
    return build_schema(hf_config, tiers, optimizer)
