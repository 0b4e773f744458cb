"""Replicas of a toy run as their optimizer sees them: tensors, and gradients that do not depend on
them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aftermath.optim.engine import Engine
from aftermath.optim.schema import Schema

SEQUENCES = torch.zeros(1, 2, dtype=torch.int64)


def tensors(schema: Schema, tier: int, seed: int) -> dict[str, Tensor]:
    """Normal numbers in the shapes of a tier's tensors; every tier's are a part of tier 0's."""
    generator = torch.Generator().manual_seed(seed)
    shapes = schema.state.config.parameter_shapes()
    whole = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    own = schema.state.config.parameter_shapes(tier)
    return {name: whole[name][tuple(map(slice, shape))].clone() for name, shape in own.items()}


def replica(schema: Schema, tier: int, seed: int = 0) -> tuple[dict[str, Tensor], Engine]:
    """Parameters and their optimizer."""
    params = tensors(schema, tier, seed)
    return params, Engine(schema, tier, params)


def gradients(schema: Schema, tier: int, seed: int) -> dict[str, Tensor]:
    """Set arbitrary gradients."""
    return tensors(schema, tier, 1000 + seed)


def encode(
    engine: Engine, grads: Mapping[str, Tensor], lr: float, ahead: float = 0.0
) -> dict[int, bytes]:
    """The result that an optimizer makes of these gradients, whatever the weights."""

    def backward(_: Tensor) -> float:
        for name, gradient in grads.items():
            engine._params[name].grad = gradient.clone()
        return 0.0

    return engine.train(SEQUENCES, backward, lr, ahead).payloads


def bits(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """All there is to compare."""
    return {name: tensor.cpu().numpy().tobytes() for name, tensor in tensors.items()}
