"""What error feedback remembers, by the layouts of the levels that are held: names, sizes, and what cannot be there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aftermath.optim.blocks import UNUSED
from aftermath.optim.layout import LevelLayout
from aftermath.optim.parts import BadState


def state_sizes(layouts: Mapping[int, LevelLayout]) -> dict[str, int]:
    """Bytes of every tensor that is remembered of such levels."""
    found = {}
    for level, layout in layouts.items():
        for group, of in enumerate(layout.groups):
            found[f"residual.{level}.{group}"] = of.blocks * of.block * torch.float32.itemsize
            found[f"indices.{level}.{group}"] = of.blocks * of.topk * torch.int64.itemsize
            found[f"values.{level}.{group}"] = of.blocks * of.topk * torch.float32.itemsize
    return found


def check_state(layouts: Mapping[int, LevelLayout], state: Mapping[str, Tensor]) -> bool:
    """Whether something was sent, by what is remembered of such levels. Raises BadState unless it is that exactly."""
    places = [(level, group) for level in layouts for group in range(len(layouts[level].groups))]
    sent = any(not name.startswith("residual.") for name in state)
    kinds = ("residual", "indices", "values") if sent else ("residual",)
    names = {f"{kind}.{level}.{group}" for kind in kinds for level, group in places}
    if state.keys() != names:
        raise BadState(f"an optimizer's state lacks or has too much of {sorted(state.keys() ^ names)[0]}")
    for level, group in places:
        of = layouts[level].groups[group]
        _check(state, f"residual.{level}.{group}", (of.blocks, of.height, of.width))
        for kind in kinds[1:]:
            _check(state, f"{kind}.{level}.{group}", (of.blocks, of.topk), of.block if kind == "indices" else None)
    return sent


def _check(state: Mapping[str, Tensor], name: str, shape: tuple[int, ...], block: int | None = None) -> None:
    """Raises BadState unless this tensor holds finite fp32 numbers, or places in a `block` of so many."""
    tensor, dtype = state[name], torch.float32 if block is None else torch.int64
    if tensor.shape != shape or tensor.dtype != dtype:
        raise BadState(f"{name} of an optimizer's state is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {shape}")
    fits = torch.isfinite(tensor) if block is None else ((tensor >= 0) & (tensor < block)) | (tensor == UNUSED)
    if not bool(fits.all()):
        raise BadState(f"{name} of an optimizer's state holds a number that cannot be there")
