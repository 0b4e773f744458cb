"""Initial weights: the same bits from the same seed on every machine, for every tier.

Decided: each tensor has its own stream (Philox keyed by SHA-256 of seed and name), and values are uniform, made from
24-bit integers with one rounding; a normal draw would go through the platform's `log` and `cos` and differ between
machines. How large they are is the architecture's to say.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from aftermath.model.config import ModelConfig
from aftermath.model.schema import prefix

DUMMY_SEED = 0
"""Of the weights of a run that begins without stored ones."""


def init_weights(config: ModelConfig, seed: int, tier: int = 0) -> dict[str, Tensor]:
    """fp32 tensors of a tier. Those of tier k are exactly the prefixes of tier 0's."""
    full, held = config.parameter_shapes(), config.parameter_shapes(tier)
    params = {}
    for name in held:
        shape = full[name]
        deviation = config.deviation(name)
        values = (
            torch.full(shape, config.constant(name)) if deviation is None else _uniform(deviation, seed, name, shape)
        )
        params[name] = values[prefix(held[name])].contiguous()
    return params


def _uniform(deviation: float, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    count = math.prod(shape)
    raw = np.random.Philox(key=int.from_bytes(key[:16], "little")).random_raw(-(-count // 2))
    units = (raw.astype("<u8").view("<u4")[:count] >> 8).astype(np.int32)  # [0, 2^24)
    odd = (2 * units - (2**24 - 1)).astype(np.float32)  # odd integers in (-2^24, 2^24): exact in fp32
    values = odd * np.float32(deviation * math.sqrt(3) / 2**24)  # a uniform of half-width a has deviation a / sqrt(3)
    return torch.from_numpy(values.reshape(shape))
