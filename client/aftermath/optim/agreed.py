"""The schema of a run: the owner's command that puts its hash on chain and every member build it through here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aftermath.optim.distro import Distro
from aftermath.optim.schema import Schema, SchemaError, Settings, build_schema
from aftermath.optim.sparseloco import Divisor, SparseLoCo
from aftermath.rules import state
from aftermath.rules.model import Optimizer
from aftermath.rules.sparseloco import InnerOptimizer
from aftermath.rules.state import OptimizerKind

EXCHANGED = {OptimizerKind.DISTRO: "DisTrO", OptimizerKind.SPARSELOCO: "SparseLoCo"}
"""The optimizers whose members exchange results, as people write them."""
_TABLES = "Use [model.LLM.optimizer.Distro] or [model.LLM.optimizer.SparseLoCo] in the run's config file"
_INNER: dict[state.InnerOptimizer, InnerOptimizer] = {
    state.InnerOptimizer.ADAMW: "adamw",
    state.InnerOptimizer.MUON: "muon",
}


def agreed_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Optimizer) -> Schema:
    """The schema of a run's checkpoint (its config.json) under the settings that its Model account holds.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return build_schema(hf_config, tiers, settings_of(optimizer))


def settings_of(optimizer: Optimizer) -> Settings:
    """What a run's members agree on, out of the numbers of its Model account. Raises SchemaError."""
    if optimizer.kind is OptimizerKind.SPARSELOCO:
        return sparseloco_of(optimizer)
    if optimizer.kind is OptimizerKind.DISTRO:
        return distro_of(optimizer)
    raise SchemaError(f"members exchange no results with an optimizer of kind {optimizer.kind.name.lower()}", _TABLES)


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


def sparseloco_of(optimizer: Optimizer) -> SparseLoCo:
    """SparseLoCo's settings out of the numbers of a Model account. Raises SchemaError."""
    return SparseLoCo(
        inner_steps=optimizer.inner_steps,
        inner_optimizer=_INNER[optimizer.inner_optimizer],
        topk=optimizer.compression_topk,
        topk_embeddings=optimizer.compression_topk_embeddings or optimizer.compression_topk,
        chunk=optimizer.compression_chunk,
        bits=optimizer.value_bits,
        decay=optimizer.compression_decay,
        outer_lr=optimizer.outer_lr,
        divisor=Divisor[optimizer.divisor.name],
        orthogonal_lr=optimizer.orthogonal_lr,
        weight_decay=optimizer.weight_decay,
        clip=optimizer.clip_grad_norm or None,
    )
