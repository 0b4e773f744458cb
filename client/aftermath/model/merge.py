"""Putting a tier's slice back into the full model it belongs to.

Decided: a slice holds the first units, heads and layers that its tier keeps, and all that has no levels; these take the
place of the full model's, and the rest of it stays. So what was exported and not changed since merges to the same bits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from aftermath.base.text import counted
from aftermath.model.checkpoint import load, load_config
from aftermath.model.config import ModelConfig, stored_tier
from aftermath.model.documents import CheckpointError, hf_config
from aftermath.model.levels import prefix

log = logging.getLogger(__name__)


def merged(full: Path, part: Path, warn: Callable[[str], None] = log.warning) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The full model's config and tensors with those of a slice in their places.

    `warn` is told how far the slice is from the full model, if its values differ. Raises CheckpointError or
    ModelConfigError, for a slice of another model too.
    """
    config, tier = load_config(full), stored_tier(hf_config(part / "config.json"))[0]
    if stored_tier(hf_config(full / "config.json"))[0]:
        raise CheckpointError(f"{full} is itself a slice", "Name the full checkpoint")
    if load_config(part) != config:
        raise CheckpointError(
            f"{part} is no slice of {full}: their config.json describe two models", "Name the slice's own full model"
        )
    params, slices = load(full, 0), load(part, tier)
    changed = 0
    squares, differences = 0.0, 0.0
    for name, tensor in slices.items():
        place = params[name][prefix(tensor.shape)]
        changed += not torch.equal(place, tensor)
        squares += float(place.square().sum(dtype=torch.float64))
        differences += float((place - tensor).square().sum(dtype=torch.float64))
        place.copy_(tensor)
    if changed:
        size = math.sqrt(differences / squares) if squares else math.inf
        warn(
            f"{counted(changed, 'tensor')} of {part} differ from {full} by {size:.1%} of their norm. Either the slice "
            "was trained further, or it comes from another training, which makes the merged model useless. Above 100% "
            "the two have little in common"
        )
    return config, params
