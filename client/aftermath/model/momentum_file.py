"""Read and write a run's outer momentum, `outer_momentum.safetensors` in a checkpoint.

The file has an int64 tensor for each parameter of the full model, under the parameter's name. A
tier reads its part. Exported models do not have the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from aftermath.model.config import ModelConfig
from aftermath.model.json_documents import (
    MOMENTUM_FILE,
    CheckpointError,
    check_readable,
    damaged,
    is_file,
)
from aftermath.model.levels import MOMENTUM, prefix
from aftermath.model.segments import is_momentum

_KIND = "I64"
_FIX = "Use the file that a tier-0 member of the run wrote with these weights"


def zero_momentum(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return zeroed momentum tensors."""
    return {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}


def write_momentum(directory: Path, momentum: Mapping[str, Tensor]) -> None:
    """Write the momentum of the full model. Names in `momentum` have the prefix MOMENTUM."""
    tensors = {
        name.removeprefix(MOMENTUM): tensor.detach().to("cpu").contiguous()
        for name, tensor in momentum.items()
    }
    save_file(tensors, directory / MOMENTUM_FILE)


def read_momentum(
    directory: Path, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Return a tier's momentum tensors. They are zero if the file is missing.

    `shapes` gives their names and shapes (`StateSchema.momentum_shapes`). Raises CheckpointError if
    the file does not fit or a value is too large.
    """
    path = directory / MOMENTUM_FILE
    if not shapes or not is_file(path):
        return zero_momentum(shapes)
    check_readable(path)
    full = config.parameter_shapes()
    try:
        with safe_open(path, framework="pt") as file:
            names = {name.removeprefix(MOMENTUM): name for name in shapes}
            if missing := sorted(names.keys() - set(file.keys())):
                raise CheckpointError(f"{path} lacks {missing[0]}", _FIX)
            momentum = {}
            for stored, name in names.items():
                part = file.get_slice(stored)
                shape = tuple(part.get_shape())
                if part.get_dtype() != _KIND or shape != full[stored]:
                    raise CheckpointError(
                        f"{path}: {stored} is {part.get_dtype()} {shape}, but the run needs "
                        f"{_KIND} {full[stored]}",
                        _FIX,
                    )
                momentum[name] = part[prefix(shapes[name])].to(torch.int64, copy=True).contiguous()
                if not is_momentum(momentum[name]):
                    raise CheckpointError(f"{path}: {stored} has a value that is too large", _FIX)
            return momentum
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None
