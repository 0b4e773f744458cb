"""The schema of a run: the owner's command that puts its hash on chain and every member build it through here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.optim.distro import Distro
from aftermath.optim.schema import Schema, build_schema
from aftermath.run.accounts import Optimizer


def agreed_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Optimizer) -> Schema:
    """The schema of a run's checkpoint (its config.json) under the settings that its Model account holds.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return build_schema(hf_config, tiers, distro_of(optimizer))


def distro_of(optimizer: Optimizer) -> Distro:
    """DisTrO's settings out of the numbers of a Model account. Raises SchemaError."""
    return Distro(
        topk=optimizer.compression_topk,
        topk_embeddings=optimizer.compression_topk_embeddings or optimizer.compression_topk,
        chunk=optimizer.compression_chunk,
        quantize_1bit=bool(optimizer.quantize_1bit),
        decay=optimizer.compression_decay,
        weight_decay=optimizer.weight_decay,
        clip=optimizer.clip_grad_norm or None,
    )
