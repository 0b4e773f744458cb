"""Names, sizes and checks of the saved state of error feedback.

A saved result must be one that an encoder can produce, because the next round subtracts it from the
residual. So indices ascend within a block, and values are finite and nonzero. With a lattice,
values are on it. Unused entries come last and have value 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aftermath.optim.blocks import UNUSED
from aftermath.optim.interfaces import BadState
from aftermath.optim.lattice import digits_of, is_half_more
from aftermath.optim.layout import Group, LevelLayout

STATE_KINDS = ("residual", "indices", "values")
"""Kinds of state tensors. Those after the first are the last result sent."""


def state_sizes(layouts: Mapping[int, LevelLayout]) -> dict[str, int]:
    """Return the bytes of every state tensor of such levels."""
    sizes = {}
    for level, layout in layouts.items():
        for group, of in enumerate(layout.groups):
            sizes[f"residual.{level}.{group}"] = of.blocks * of.block * torch.float32.itemsize
            sizes[f"indices.{level}.{group}"] = of.blocks * of.topk * torch.int64.itemsize
            sizes[f"values.{level}.{group}"] = of.blocks * of.topk * torch.float32.itemsize
    return sizes


def kind_of_state(kind: str, group: Group) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of a group's tensor of one of STATE_KINDS."""
    if kind == "residual":
        return (group.blocks, group.height, group.width), torch.float32
    return (group.blocks, group.topk), torch.int64 if kind == "indices" else torch.float32


def check_state(layouts: Mapping[int, LevelLayout], state: Mapping[str, Tensor], bits: int) -> bool:
    """Return whether the state contains a sent result. Raises BadState if it is not valid.

    `bits` is 1 or 2 for lattice values, and 0 for others.
    """
    places = [(level, group) for level in layouts for group in range(len(layouts[level].groups))]
    sent = any(not name.startswith("residual.") for name in state)
    kinds = STATE_KINDS if sent else STATE_KINDS[:1]
    names = {f"{kind}.{level}.{group}" for kind in kinds for level, group in places}
    if state.keys() != names:
        raise BadState(
            f"the optimizer state has a missing or unexpected tensor {sorted(state.keys() ^ names)[0]}"
        )
    for level, group in places:
        of = layouts[level].groups[group]
        _check(state, f"residual.{level}.{group}", (of.blocks, of.height, of.width))
        for kind in kinds[1:]:
            _check(
                state,
                f"{kind}.{level}.{group}",
                (of.blocks, of.topk),
                of.block if kind == "indices" else None,
            )
        if sent:
            where = f"{level}.{group}"
            _check_sent(where, state[f"indices.{where}"], state[f"values.{where}"], bits)
    return sent


def _check(
    state: Mapping[str, Tensor], name: str, shape: tuple[int, ...], block: int | None = None
) -> None:
    """Raise BadState unless this tensor has finite fp32 numbers, or places within a `block`."""
    tensor = state[name]
    dtype = torch.float32 if block is None else torch.int64
    if tensor.shape != shape or tensor.dtype != dtype:
        raise BadState(
            f"{name} of the optimizer state is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {shape}"
        )
    if not tensor.is_contiguous():
        raise BadState(f"{name} of the optimizer state is not contiguous")
    fits = (
        torch.isfinite(tensor)
        if block is None
        else ((tensor >= 0) & (tensor < block)) | (tensor == UNUSED)
    )
    if not bool(fits.all()):
        raise BadState(f"{name} of the optimizer state has an invalid number")


def _check_sent(where: str, indices: Tensor, values: Tensor, bits: int) -> None:
    """Raise BadState unless an encoder can produce these indices and values, [blocks, topk]."""
    used = indices != UNUSED
    if bool(
        (indices[:, 1:] < indices[:, :-1]).any()
        | ((indices[:, 1:] == indices[:, :-1]) & used[:, 1:]).any()
    ):
        raise BadState(f"indices.{where} of the optimizer state are not in ascending order")
    if bool((used != (values != 0)).any()):
        raise BadState(f"values.{where} of the optimizer state do not match its indices")
    if not bits or not values.numel():
        return
    try:
        digits_of(values, 2)
    except ValueError as error:
        raise BadState(f"values.{where} of the optimizer state: {error}") from None
    if bits == 1 and bool(is_half_more(values).any()):
        raise BadState(f"values.{where} of the optimizer state need more bits per value")
