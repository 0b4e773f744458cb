"""What AdamW and Muon remember of each parameter, as named tensors, and back.

Decided: it is taken over whole or not at all, since moments without their count would be another optimizer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from aftermath.optim.muon import Muon
from aftermath.optim.parts import BadState

_ADAMW, _MATRIX, _REST = {"step", "exp_avg", "exp_avg_sq"}, {"momentum"}, {"count", "first", "second"}
_COUNTS = {"step": torch.float32, "count": torch.int64}
Kind = tuple[tuple[int, ...], torch.dtype]
"""Of a tensor."""
States = dict[str, dict[str, Any]]
"""What an optimizer's own state has of each parameter, by the parameter's name."""


def may_fuse(params: Iterable[Tensor]) -> bool:
    """Whether AdamW of these can be torch's fused one."""
    kinds = {parameter.device.type for parameter in params}
    return kinds == {"cpu"} or (kinds == {"cuda"} and torch.cuda.is_available())


def moments(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimizer's own tensors, `what/parameter`, and its counts as such; nothing before the first step."""
    return moments_in({name: optimizer.state.get(parameter, {}) for name, parameter in params.items()})


def moments_in(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    """The same of an optimizer's states by parameter."""
    return {
        f"{key}/{name}": torch.as_tensor(value).detach() for name, own in states.items() for key, value in own.items()
    }


def moment_kinds(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Kind]:
    """Shape and type of each of them after the first step."""
    return {
        f"{key}/{name}": ((), _COUNTS[key]) if key in _COUNTS else (tuple(parameter.shape), torch.float32)
        for name, parameter in params.items()
        for key in _keys(optimizer, parameter)
    }


def bytes_of(kind: Kind) -> int:
    """Of a tensor of that kind."""
    shape, dtype = kind
    return torch.Size(shape).numel() * dtype.itemsize


def check_moments(kinds: Mapping[str, Kind], kept: Mapping[str, Tensor]) -> None:
    """Raises BadState unless these are all moments of an optimizer with such, or none."""
    if kept and kept.keys() != kinds.keys():
        raise BadState(f"an optimizer's state lacks or has too much of {sorted(kept.keys() ^ kinds.keys())[0]}")
    for path, tensor in kept.items():
        if (tuple(tensor.shape), tensor.dtype) != kinds[path] or not bool(torch.isfinite(tensor).all()):
            raise BadState(f"{path} of an optimizer's state is not of this optimizer, or holds what cannot be there")


def states_of(kept: Mapping[str, Tensor], devices: Mapping[str, torch.device]) -> States:
    """What an optimizer goes on from: copies of moments where `devices` has their parameters, and of counts where torch
    wants them: a fused AdamW counts where its parameters are, all else on the CPU.
    """
    found: States = {}
    fused = may_fuse([torch.empty(0, device=device) for device in set(devices.values())])
    for path, tensor in kept.items():
        key, _, name = path.partition("/")
        dtype = _COUNTS.get(key)
        value = (
            int(tensor)
            if dtype == torch.int64
            else tensor.to(devices[name] if fused or not dtype else "cpu", copy=True)
        )
        found.setdefault(name, {})[key] = value
    return found


def take_moments(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """Go on from what `moments` gave. Raises BadState, leaving all as it was, unless it is of this optimizer."""
    check_moments(moment_kinds(optimizer, params), kept)
    put_back(optimizer, params, kept)


def put_back(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """The same of what this very optimizer had, which has nothing of parameters that never had a gradient."""
    found = states_of(kept, {name: parameter.device for name, parameter in params.items()})
    optimizer.state.clear()
    for name, values in found.items():
        optimizer.state[params[name]] = values


def _keys(optimizer: torch.optim.Optimizer, tensor: Tensor) -> set[str]:
    if not isinstance(optimizer, Muon):
        return _ADAMW
    matrices = (own for group in optimizer.param_groups if group["orthogonal"] for own in group["params"])
    return _MATRIX if any(own is tensor for own in matrices) else _REST
