"""What the training loop needs from a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from aftermath.model.documents import CheckpointError
from aftermath.model.network import LanguageModel


@dataclass(frozen=True)
class Stepped:
    """What one step made of its shares."""

    losses: list[float | None]
    """Loss of each member, or None if its result was not finite and was left out."""
    bytes: int = 0
    """Size of all members' results."""
    left_out: tuple[str, ...] = ()
    """Why, in sentences."""


class Trainer(Protocol):
    """A model, or the replicas of one, with what changes it."""

    def step(self, step: int, shares: Sequence[Tensor], accepted: Sequence[bool]) -> Stepped:
        """Train every member's share int64 [n, seq_len]; only results that are accepted are ever
        applied.
        """

    def settle(self) -> None:
        """Apply what is under way: nothing more comes."""

    def check(self) -> None:
        """Raise if replicas differ that have to be equal."""

    def models(self) -> Mapping[int, LanguageModel]:
        """One model of each tier that takes part."""

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to continue bit by bit, on the CPU."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from there. Raises an AftermathError if it does not fit."""


def on_cpu(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Copies under other names."""
    return {
        f"{prefix}{name}": tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in tensors.items()
    }


def below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def take_weights(params: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """Give parameters the numbers that were kept. Raises CheckpointError unless names and shapes
    are theirs.
    """
    for name in params.keys() | kept.keys():
        if name not in params or name not in kept or not fits(kept[name], params[name]):
            raise CheckpointError(
                f"the saved state does not fit this model: {name}", "Name another --out"
            )
    with torch.no_grad():
        for name, tensor in kept.items():
            params[name].copy_(tensor)


def fits(kept: Tensor, tensor: Tensor) -> bool:
    """Whether these are finite numbers of that type and shape."""
    return (
        kept.dtype == tensor.dtype
        and kept.shape == tensor.shape
        and bool(torch.isfinite(kept).all())
    )
