"""Putting a tier's slice back into the full model it belongs to.

Decided: a slice holds the first units, heads and layers that its tier keeps, and all that has no levels; these take the
place of the full model's, and the rest of it stays. So what was exported and not changed since merges to the same bits.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from aftermath.model.checkpoint import load, load_config
from aftermath.model.config import ModelConfig, stored_tier
from aftermath.model.documents import CheckpointError, hf_config
from aftermath.model.levels import prefix


def merged(full: Path, part: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The full model's config and tensors with those of a slice in their places.

    Raises CheckpointError or ModelConfigError, for a slice of another model too.
    """
    config, tier = load_config(full), stored_tier(hf_config(part / "config.json"))[0]
    if stored_tier(hf_config(full / "config.json"))[0]:
        raise CheckpointError(f"{full} is itself a slice", "Name the full checkpoint")
    if load_config(part) != config:
        raise CheckpointError(
            f"{part} is no slice of {full}: their config.json describe two models", "Name the slice's own full model"
        )
    params, slices = load(full, 0), load(part, tier)
    for name, tensor in slices.items():
        params[name][prefix(tensor.shape)].copy_(tensor)
    return config, params
