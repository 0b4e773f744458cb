"""Convert the moments of AdamW and Muon to named tensors, check them, and restore them.

Restoring is all-or-nothing, because moments are meaningless without their step count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aftermath.optim.interfaces import BadState
from aftermath.optim.muon import Muon

_ADAMW = {"step", "exp_avg", "exp_avg_sq"}
_MATRIX = {"momentum"}
_REST = {"count", "first", "second"}
_COUNTS = {"step": torch.float32, "count": torch.int64}
SECONDS = {"exp_avg": "exp_avg_sq", "first": "second"}
"""The second moment that belongs to each first moment."""
_MOST_STEPS = 1 << 24  # a float32 count stops growing there
_ROUNDING = 1.01
_UNDERFLOW = 1e-30  # the square of a small gradient is lost in float32
Kind = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor."""
States = dict[str, dict[str, Any]]
"""An optimizer's state of each parameter, by the parameter's name."""


def may_fuse(params: Iterable[Tensor]) -> bool:
    """Return whether torch's fused AdamW supports these parameters."""
    kinds = {parameter.device.type for parameter in params}
    return kinds == {"cpu"} or (kinds == {"cuda"} and torch.cuda.is_available())


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors. A GPU copies all tensors of one dtype in one launch."""
    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    alike: defaultdict[tuple[torch.device, torch.dtype], list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        alike[tensor.device, tensor.dtype].append(name)
    for names in alike.values():
        torch._foreach_copy_([copies[name] for name in names], [tensors[name] for name in names])
    return copies


def moments(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's moments, named `kind/parameter`. Empty before the first step."""
    return moments_in(
        {name: optimizer.state.get(parameter, {}) for name, parameter in params.items()}
    )


def moments_in(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the moments in an optimizer's states by parameter, named like `moments`."""
    return {
        f"{key}/{name}": torch.as_tensor(value).detach()
        for name, state in states.items()
        for key, value in state.items()
    }


def moment_kinds(optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor]) -> dict[str, Kind]:
    """Return the shape and dtype of each moment after the first step."""
    return {
        f"{key}/{name}": kind_of(key, tuple(parameter.shape))
        for name, parameter in params.items()
        for key in _keys(optimizer, parameter)
    }


def kind_of(key: str, shape: tuple[int, ...]) -> Kind:
    """Return the shape and dtype of the moment `key` of a parameter with this shape."""
    return ((), _COUNTS[key]) if key in _COUNTS else (shape, torch.float32)


def bytes_of(kind: Kind) -> int:
    """Return the bytes of a tensor of that kind."""
    shape, dtype = kind
    return torch.Size(shape).numel() * dtype.itemsize


def betas_of(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Return the decays of AdamW's first and second moments."""
    if isinstance(optimizer, Muon):
        return optimizer.settings.betas
    betas: tuple[float, float] = optimizer.param_groups[0]["betas"]
    return betas


def check_moments(
    kinds: Mapping[str, Kind], state: Mapping[str, Tensor], betas: tuple[float, float]
) -> None:
    """Raise BadState unless `state` has all moments of this optimizer, or none.

    Also raise it for numbers that no steps with these `betas` give.
    """
    if state and state.keys() != kinds.keys():
        raise BadState(
            f"the optimizer state has a missing or unexpected tensor {sorted(state.keys() ^ kinds.keys())[0]}"
        )
    for path, tensor in state.items():
        if (tuple(tensor.shape), tensor.dtype) != kinds[path] or not bool(
            torch.isfinite(tensor).all()
        ):
            raise BadState(
                f"{path} of the optimizer state has the wrong shape or dtype, or is not finite"
            )
    largest = _largest_square(betas)
    for path, tensor in state.items():
        if _is_count(path):
            _check_count(path, tensor)
        key, _, name = path.partition("/")
        if key in SECONDS:
            _check_pair(path, tensor, state[f"{SECONDS[key]}/{name}"], largest)


def _largest_square(betas: tuple[float, float]) -> float:
    """Return the largest ratio of a first moment's square to its second moment.

    By Cauchy-Schwarz: first = (1 - b1) sum b1^i g_i, and second = (1 - b2) sum b2^i g_i^2, so the
    ratio is at most (1 - b1)^2 / (1 - b2) sum (b1^2 / b2)^i. It is infinite if b1^2 >= b2.
    """
    beta1, beta2 = betas
    if beta1**2 >= beta2 or beta2 >= 1:
        return float("inf")
    return (1 - beta1) ** 2 / ((1 - beta2) * (1 - beta1**2 / beta2))


def _check_count(path: str, count: Tensor) -> None:
    """Raise BadState unless `count` is a number of steps."""
    steps = float(count)
    if not 0 <= steps <= _MOST_STEPS or not steps.is_integer():
        raise BadState(f"{path} of the optimizer state is not a number of steps: {steps:g}")


def _check_pair(path: str, first: Tensor, second: Tensor, largest: float) -> None:
    """Raise BadState unless these are AdamW's moments of some gradients."""
    # Otherwise a cheater could commit to moments whose next step is not finite. The replay would
    # have no result then, and every judge would abstain.
    if bool((second < 0).any()):
        raise BadState(f"{path} of the optimizer state has a negative second moment")
    if largest == float("inf"):
        return
    if not bool((first.square() <= second * (_ROUNDING * largest) + _UNDERFLOW).all()):
        raise BadState(f"{path} of the optimizer state is too large for its second moment")


def states_of(state: Mapping[str, Tensor], devices: Mapping[str, torch.device]) -> States:
    """Return an optimizer's states by parameter, copied from moments.

    Moments go to the devices of their parameters. Counts go where torch wants them: with the
    parameter for a fused AdamW, else to the CPU.
    """
    states: States = {}
    fused = may_fuse([torch.empty(0, device=device) for device in set(devices.values())])
    for path, tensor in state.items():
        key, _, name = path.partition("/")
        dtype = _COUNTS.get(key)
        value = (
            int(tensor)
            if dtype == torch.int64
            else tensor.to(devices[name] if fused or not dtype else "cpu", copy=True)
        )
        states.setdefault(name, {})[key] = value
    return states


def take_moments(
    optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> None:
    """Restore what `moments` returned. Raises BadState, and changes nothing, if it does not fit."""
    if state:
        check_moments(moment_kinds(optimizer, params), state, betas_of(optimizer))
    put_back(optimizer, params, state)


def put_back(
    optimizer: torch.optim.Optimizer, params: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> None:
    """Restore moments of this same optimizer. Parameters without a gradient have none."""
    states = states_of(state, {name: parameter.device for name, parameter in params.items()})
    optimizer.state.clear()
    for name, values in states.items():
        optimizer.state[params[name]] = values


def stacked_moments(of_members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the moments of several members as one optimizer's, [members, ...] each.

    Members must have equal counts (`steps_of`), which are not stacked.
    """
    return {
        path: tensor if _is_count(path) else torch.stack([own[path] for own in of_members])
        for path, tensor in of_members[0].items()
    }


def moments_of_member(stacked: Mapping[str, Tensor], member: int) -> dict[str, Tensor]:
    """Return one member's part of stacked moments, without copies."""
    return {path: tensor if _is_count(path) else tensor[member] for path, tensor in stacked.items()}


def steps_of(moments: Mapping[str, Tensor]) -> float:
    """Return the number of steps that the moments have seen.

    Moments without a step count give 1, meaning "at least one". No moments give 0.
    """
    counts = (float(tensor) for path, tensor in moments.items() if _is_count(path))
    return next(counts, float(bool(moments)))


def _is_count(path: str) -> bool:
    return path.partition("/")[0] in _COUNTS


def _keys(optimizer: torch.optim.Optimizer, tensor: Tensor) -> set[str]:
    if not isinstance(optimizer, Muon):
        return _ADAMW
    matrices = (
        matrix
        for group in optimizer.param_groups
        if group["orthogonal"]
        for matrix in group["params"]
    )
    return _MATRIX if any(matrix is tensor for matrix in matrices) else _REST
