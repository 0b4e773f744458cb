"""Initial weights: the same seed gives the same bits on every machine and for every tier."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from aftermath.model.config import ModelConfig
from aftermath.model.levels import prefix

DUMMY_SEED = 0
"""The seed of a run that begins without stored weights."""


def init_weights(config: ModelConfig, seed: int, tier: int = 0) -> dict[str, Tensor]:
    """Return fp32 tensors of a tier. Tier k's are exactly the prefixes of tier 0's."""
    full = config.parameter_shapes()
    shapes = config.parameter_shapes(tier)
    params = {}
    for name in shapes:
        shape = full[name]
        deviation = config.deviation(name)
        values = (
            torch.full(shape, config.constant(name))
            if deviation is None
            else _uniform(deviation, seed, name, shape)
        )
        params[name] = values[prefix(shapes[name])].contiguous()
    return params


# Uniform values come from 24-bit integers with one rounding. A normal draw would use the platform's
# `log` and `cos`, which differ between machines. Each tensor has its own Philox stream, keyed by
# the SHA-256 of seed and name.
def _uniform(deviation: float, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    count = math.prod(shape)
    raw = np.random.Philox(key=int.from_bytes(key[:16], "little")).random_raw(-(-count // 2))
    units = (raw.astype("<u8").view("<u4")[:count] >> 8).astype(np.int32)  # [0, 2^24)
    # odd integers in (-2^24, 2^24): exact in fp32
    odd = (2 * units - (2**24 - 1)).astype(np.float32)
    # a uniform of half-width a has deviation a / sqrt(3)
    values = odd * np.float32(deviation * math.sqrt(3) / 2**24)
    return torch.from_numpy(values.reshape(shape))
