"""Weights in fp8 with a scale for every block: what the files say of scales, checked, and the fp32 numbers they mean.

Decided: a scale is a tensor of its own, which may be in another file than its weights, so all scales are read first;
they are one number for thousands. A tensor in fp8 without scales is refused, and so are scales without such a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from aftermath.model.documents import CheckpointError, damaged
from aftermath.model.published import SCALES

KIND = "F8_E4M3"
_SCALE_KINDS = ("F32", "BF16")


def read_scales(
    files: Sequence[Path], shapes: Mapping[str, tuple[int, ...]], block: tuple[int, int]
) -> dict[str, Tensor]:
    """fp32 scales by the names of the tensors that they are of, which are of these shapes. Raises CheckpointError."""
    found: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for listed in file.keys():  # noqa: SIM118 - it is no dictionary
                    name = listed.removesuffix(SCALES)
                    if name == listed or name not in shapes:
                        continue
                    if name in found:
                        raise CheckpointError(f"{path}: {listed} is also in another shard")
                    part, wanted = file.get_slice(listed), _blocks(shapes[name], block)
                    shape, kind = tuple(part.get_shape()), part.get_dtype()
                    if not wanted or shape != wanted or kind not in _SCALE_KINDS:
                        raise CheckpointError(
                            f"{path}: {listed} is {kind} {shape}, config.json says "
                            + (f"F32 {wanted}" if wanted else "that it is none"),
                            "Take weights and config.json from the same checkpoint",
                        )
                    found[name] = part[:].to(torch.float32, copy=True)
                    if bool((found[name] < 0).any()):
                        raise CheckpointError(
                            f"{path}: {listed} has a scale below 0", "Copy or download the checkpoint again"
                        )
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    return found


def scaled(weights: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """fp32 [rows, columns], changed in place, of which each block is multiplied by its scale.

    They may be the first rows and columns of what the scales are of.
    """
    rows, columns = block
    for number, strip in enumerate(weights.split(rows)):
        strip.mul_(scales[number].repeat_interleave(columns)[: weights.shape[1]])
    return weights


def _blocks(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """How many blocks a matrix has; what is none has no scales."""
    return tuple(-(-size // edge) for size, edge in zip(shape, block, strict=True)) if len(shape) == 2 else ()
