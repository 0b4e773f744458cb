"""The member's own optimizer behind SparseLoCo's inner steps: AdamW or Muon, and what it remembers.

Decided
- A share that fails must leave no trace. So moments are copied before its first step, and taken back if it does.
- Who makes the steps is an object, since the ranks of a member on several devices share them (`ranks.sharded_inner`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from aftermath.optim.eager import AdamW
from aftermath.optim.moments import bytes_of, may_fuse, moment_kinds, moments, put_back, take_moments
from aftermath.optim.muon import Muon, MuonSettings
from aftermath.optim.parts import Remembering
from aftermath.optim.private_blocks import BlockSpan, block_of, digests_of
from aftermath.optim.sparseloco import SparseLoCo

BETAS, EPSILON = (0.9, 0.95), 1e-8


class Inner(Remembering, Protocol):
    """Steps of some parameters by their gradients, which are the parameters' `grad`."""

    takes_gradients_as_they_are: ClassVar[bool]
    """Whether `step` needs no factors: gradients may be scaled by numbers that nobody has read."""

    def begin(self) -> None:
        """A share begins: what is remembered now may be asked for again."""

    def step(self, lr: float, factors: Sequence[float]) -> None:
        """Make one step at this rate, of gradients that were scaled by these factors since they were taken."""

    def end(self) -> None:
        """The share is trained; there is no way back."""

    def undo(self) -> None:
        """It failed: remember what was remembered when it began. The parameters are somebody else's."""


MakeInner = Callable[[Mapping[str, Tensor], SparseLoCo], Inner]
"""Makes the steps of such parameters, as `InnerOptimizer` does."""


class InnerOptimizer:
    """Makes all steps where the parameters are."""

    takes_gradients_as_they_are: ClassVar[bool] = True

    def __init__(self, params: Mapping[str, Tensor], settings: SparseLoCo) -> None:
        self._params = dict(params)
        self._optimizer = inner_optimizer(self._params, settings)
        self._before: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Copy the moments."""
        self._before = {name: tensor.clone() for name, tensor in self.remembered().items()}

    def step(self, lr: float, factors: Sequence[float]) -> None:
        """Make one step of those parameters that have a gradient."""
        del factors  # it has the gradients as they are
        step_at(self._optimizer, lr)

    def end(self) -> None:
        """Drop the copies."""
        self._before = {}

    def undo(self) -> None:
        """Take them back."""
        put_back(self._optimizer, self._params, self._before)
        self.end()

    def remembered(self) -> dict[str, Tensor]:
        """The moments."""
        return moments(self._optimizer, self._params)

    def state(self) -> dict[str, Tensor]:
        """Copies of them."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.remembered().items()}

    def sizes(self) -> dict[str, int]:
        """Of the moments."""
        return {name: bytes_of(kind) for name, kind in moment_kinds(self._optimizer, self._params).items()}

    def digests(self) -> list[bytes]:
        """Of their blocks."""
        return digests_of(self.remembered())

    def block(self, place: BlockSpan) -> bytes:
        """One of them."""
        return block_of(self.remembered(), place)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over the moments. Raises BadState, leaving all as it was, unless they are of this optimizer."""
        take_moments(self._optimizer, self._params, state)

    def reset(self) -> None:
        """Begin without moments."""
        self._optimizer.state.clear()


def inner_optimizer(params: Mapping[str, Tensor], settings: SparseLoCo) -> torch.optim.Optimizer:
    """The optimizer of these parameters, which are not none; each step sets its rate."""
    if settings.inner_optimizer == "muon":
        return Muon(params, 0.0, MuonSettings(weight_decay=settings.weight_decay, betas=BETAS, epsilon=EPSILON))
    own = list(params.values())
    return AdamW(own, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=settings.weight_decay, fused=may_fuse(own))


def step_at(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One step at a rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def rate_of_vectors(lr: float, settings: SparseLoCo) -> float:
    """The rate that vectors have in a step at this one."""
    return lr * MuonSettings().rest_rate if settings.inner_optimizer == "muon" else lr
