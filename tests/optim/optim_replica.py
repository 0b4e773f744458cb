"""Replicas of a toy run: tensors, their optimizer, and gradients independent of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aftermath.optim.engine import Engine
from aftermath.optim.schema import Schema

SEQUENCES = torch.zeros(1, 2, dtype=torch.int64)


def tensors(schema: Schema, tier: int, seed: int) -> dict[str, Tensor]:
    """Return normal numbers in the shapes of a tier's tensors, cut from those of tier 0."""
    generator = torch.Generator().manual_seed(seed)
    shapes = schema.state.config.parameter_shapes()
    whole = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    own = schema.state.config.parameter_shapes(tier)
    return {name: whole[name][tuple(map(slice, shape))].clone() for name, shape in own.items()}


def replica(schema: Schema, tier: int, seed: int = 0) -> tuple[dict[str, Tensor], Engine]:
    """Return parameters and their optimizer."""
    params = tensors(schema, tier, seed)
    return params, Engine(schema, tier, params)


def gradients(schema: Schema, tier: int, seed: int) -> dict[str, Tensor]:
    """Return random gradients in the shapes of a tier's tensors."""
    return tensors(schema, tier, 1000 + seed)


def encode(
    engine: Engine, grads: Mapping[str, Tensor], lr: float, ahead: float = 0.0
) -> dict[int, bytes]:
    """Return the result of an optimizer for these gradients."""

    def backward(_: Tensor) -> float:
        for name, gradient in grads.items():
            engine._params[name].grad = gradient.clone()
        return 0.0

    return engine.train(SEQUENCES, backward, lr, ahead).payloads


def bits(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Return the bytes of tensors by name, to compare them."""
    return {name: tensor.cpu().numpy().tobytes() for name, tensor in tensors.items()}
