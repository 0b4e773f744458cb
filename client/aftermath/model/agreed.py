"""The schema of a run: the owner's command that puts its hash on chain and every member build it through here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.model.schema import Schema, build_schema
from aftermath.run.accounts import Optimizer


def agreed_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Optimizer) -> Schema:
    """The schema of a run's checkpoint (its config.json) under the settings that its Model account holds.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return build_schema(
        hf_config,
        tiers=tiers,
        topk=optimizer.compression_topk,
        topk_embeddings=optimizer.compression_topk_embeddings or None,
        chunk=optimizer.compression_chunk,
        quantize_1bit=optimizer.quantize_1bit,
        decay=optimizer.compression_decay,
        weight_decay=optimizer.weight_decay,
        clip=optimizer.clip_grad_norm or None,
    )
