"""What AdamW and Muon remember of each parameter, as named tensors, and back.

Decided: it is taken over whole or not at all, since moments without their count would be another optimizer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from aftermath.optim.muon import Muon
from aftermath.optim.parts import BadState

_ADAMW, _MATRIX, _REST = {"step", "exp_avg", "exp_avg_sq"}, {"momentum"}, {"count", "first", "second"}


def may_fuse(params: Iterable[Tensor]) -> bool:
    """Whether AdamW of these can be torch's fused one: that counts where they are, and here counts are on the CPU."""
    return all(parameter.device.type == "cpu" for parameter in params)


def moments(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimizer's own tensors, `what/parameter`, and its counts as such; nothing before the first step."""
    return {
        f"{key}/{name}": torch.as_tensor(value).detach()
        for name, parameter in params.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def moment_sizes(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of each of them after the first step."""
    counts = {"step": torch.float32.itemsize, "count": torch.int64.itemsize}
    return {
        f"{key}/{name}": counts.get(key, parameter.nbytes)
        for name, parameter in params.items()
        for key in _keys(optimizer, parameter)
    }


def take_moments(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """Go on from what `moments` gave. Raises BadState, leaving all as it was, unless it is of this optimizer."""
    wanted = {f"{key}/{name}" for name, tensor in params.items() for key in _keys(optimizer, tensor)}
    if kept and kept.keys() != wanted:
        raise BadState(f"an optimizer's state lacks or has too much of {sorted(kept.keys() ^ wanted)[0]}")
    found: dict[str, dict[str, Tensor | int]] = {}
    for path, tensor in kept.items():
        key, _, name = path.partition("/")
        found.setdefault(name, {})[key] = _restored(path, tensor, params[name])
    optimizer.state.clear()
    for name, values in found.items():
        optimizer.state[params[name]] = values


def _keys(optimizer: torch.optim.Optimizer, tensor: Tensor) -> set[str]:
    if not isinstance(optimizer, Muon):
        return _ADAMW
    matrices = (own for group in optimizer.param_groups if group["orthogonal"] for own in group["params"])
    return _MATRIX if any(own is tensor for own in matrices) else _REST


def _restored(path: str, kept: Tensor, parameter: Tensor) -> Tensor | int:
    """A count as it was, or a tensor where its parameter is; AdamW counts in a tensor, on the CPU. Raises BadState."""
    counts = path.startswith(("step/", "count/"))
    dtype = torch.int64 if path.startswith("count/") else torch.float32
    shape = () if counts else parameter.shape
    if kept.dtype != dtype or kept.shape != shape or not bool(torch.isfinite(kept).all()):
        raise BadState(f"{path} of an optimizer's state is not of this optimizer, or holds what cannot be there")
    if counts:
        return int(kept) if dtype == torch.int64 else kept.clone()
    return kept.to(parameter.device, copy=True)
