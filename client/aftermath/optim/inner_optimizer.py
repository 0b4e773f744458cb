"""The optimizer of inner steps: AdamW or Muon, and its moments.

The moments are copied before the first step of a share and restored if the share fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from aftermath.optim.eager_adamw import AdamW
from aftermath.optim.interfaces import Stateful
from aftermath.optim.moments import (
    bytes_of,
    copies_of,
    may_fuse,
    moment_kinds,
    moments,
    put_back,
    take_moments,
)
from aftermath.optim.muon import Muon, MuonSettings
from aftermath.optim.state_merkle import digests_of
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.optimizers import AdamWAlone

BETAS = (0.9, 0.95)
EPSILON = 1e-8


# An interface, because `parallel.sharded_inner` implements the steps on several devices.
class Inner(Stateful, Protocol):
    """Steps parameters along the gradients in their `grad`."""

    takes_gradients_as_they_are: ClassVar[bool]
    """Whether `step` ignores `factors`. If so, clipping need not wait for the norm."""

    def begin(self) -> None:
        """Begin a share: keep the moments so that `undo` can restore them."""

    def step(self, lr: float, factors: Sequence[float]) -> None:
        """Make one step at this rate. The gradients were scaled by these factors."""

    def end(self) -> None:
        """End a share: it is trained, and cannot be undone."""

    def undo(self) -> None:
        """Restore the moments of `begin` after a failure. The caller restores the parameters."""


MakeInner = Callable[[Mapping[str, Tensor], Optimizer], Inner]
"""Builds the optimizer of the given parameters, for example `InnerOptimizer`."""


class InnerOptimizer:
    """AdamW or Muon on the device of the parameters."""

    takes_gradients_as_they_are: ClassVar[bool] = True

    def __init__(self, params: Mapping[str, Tensor], settings: Optimizer) -> None:
        self._params = dict(params)
        self._optimizer = inner_optimizer(self._params, settings)
        self._before: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Copy the moments."""
        self._before = copies_of(self.state_tensors())

    def step(self, lr: float, factors: Sequence[float]) -> None:
        """Make one step of the parameters that have a gradient."""
        del factors  # the gradients are scaled already
        step_at(self._optimizer, lr)

    def end(self) -> None:
        """Drop the copies."""
        self._before = {}

    def undo(self) -> None:
        """Restore the copies."""
        put_back(self._optimizer, self._params, self._before)
        self.end()

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the moments without copies."""
        return moments(self._optimizer, self._params)

    def state(self) -> dict[str, Tensor]:
        """Return copies of the moments."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.state_tensors().items()}

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each moment."""
        return {
            name: bytes_of(kind)
            for name, kind in moment_kinds(self._optimizer, self._params).items()
        }

    def digests(self) -> list[bytes]:
        """Return the digest of each block of the moments."""
        return digests_of(self.state_tensors())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the moments. Raises BadState, and changes nothing, on a mismatch."""
        take_moments(self._optimizer, self._params, state)

    def reset(self) -> None:
        """Forget the moments."""
        self._optimizer.state.clear()


def inner_optimizer(
    params: Mapping[str, Tensor], settings: Optimizer, hidden: Sequence[str] | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer of these parameters (at least one). Each step sets its rate.

    `hidden` names the hidden matrices, if their shapes do not show which ones they are.
    """
    if settings.inner_optimizer == "muon":
        return Muon(
            params,
            0.0,
            MuonSettings(weight_decay=settings.weight_decay, betas=BETAS, epsilon=EPSILON),
            hidden,
        )
    return adamw_of(
        params,
        AdamWAlone(betas=BETAS, eps=EPSILON, weight_decay=settings.weight_decay),
    )


def adamw_of(params: Mapping[str, Tensor], settings: AdamWAlone) -> torch.optim.Optimizer:
    """Return AdamW of these parameters. Each step sets its rate."""
    tensors = list(params.values())
    return AdamW(
        tensors,
        lr=0.0,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=may_fuse(tensors),
    )


def step_at(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Make one step with learning rate `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def rate_of_vectors(lr: float, settings: Optimizer) -> float:
    """Return the learning rate of vectors in a step with learning rate `lr`."""
    return lr * MuonSettings().rest_rate if settings.inner_optimizer == "muon" else lr
