"""The interface between the training loop and its trainers, and helpers for saved tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from aftermath.model.json_documents import CheckpointError
from aftermath.model.network import LanguageModel
from aftermath.model.segments import is_momentum


@dataclass(frozen=True)
class Stepped:
    """The outcome of one step."""

    losses: list[float | None]
    """Loss of each member, or None if its result was not finite and was left out."""
    bytes: int = 0
    """Size of all members' results."""
    left_out: tuple[str, ...] = ()
    """Why results were left out, one reason each."""


class Rates(NamedTuple):
    """The learning rates of a step and of the one before it."""

    step: float
    previous: float
    """Rate of the look-ahead."""


class MemberResult(NamedTuple):
    """A member's result of a step."""

    payloads: dict[int, bytes]
    loss: float


class Trainer(Protocol):
    """Trains one model, or the replicas of several members."""

    def step(self, step: int, shares: Sequence[Tensor], accepted: Sequence[bool]) -> Stepped:
        """Train every member's share, int64 [n, seq_len]. Apply only accepted results."""

    def settle(self) -> None:
        """Apply all pending results, after the last step."""

    def check(self) -> None:
        """Raise ReplicasDiffer if replicas hold different numbers for the same level."""

    def models(self) -> Mapping[int, LanguageModel]:
        """Return one model per tier."""

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to continue bit by bit, on the CPU."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises an AftermathError if it does not fit."""


def on_cpu(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Copy tensors to the CPU, with `prefix` before their names."""
    return {
        f"{prefix}{name}": tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in tensors.items()
    }


def below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, without the prefix."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def take_weights(params: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy saved weights into the parameters. Raises CheckpointError unless all of them fit."""
    for name in params.keys() | tensors.keys():
        if name not in params or name not in tensors or not fits(tensors[name], params[name]):
            raise CheckpointError(
                f"the saved state does not fit this model: {name} differs",
                "Name another --out",
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            params[name].copy_(tensor)


def fits(candidate: Tensor, tensor: Tensor) -> bool:
    """Return whether `candidate` has the dtype and shape of `tensor` and valid values.

    Floats must be finite. An outer momentum, which is int64, must be within its bound.
    """
    if candidate.dtype != tensor.dtype or candidate.shape != tensor.shape:
        return False
    return (
        is_momentum(candidate)
        if candidate.dtype == torch.int64
        else bool(torch.isfinite(candidate).all())
    )
