"""What a tier of a run's model needs of a device's memory, before anything of it is there.

Decided
- State is counted by the optimizer's own numbers. A pass is traced with tensors that have shapes and no memory, so that
  a model which fits nowhere is counted as well, in seconds; with gradients in place, as in every pass but the first.
- All is fp32, as on a CPU. Not counted are results of many members where every number is sent, and what a device needs
  for itself: `MARGIN` is room for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aftermath.optim.distro import Distro
from aftermath.optim.schema import Schema, Settings
from aftermath.replica.live_bytes import LiveBytes

MARGIN = 1.25
_SHARED = 16
"""Bytes of a parameter that every optimizer has: weight, gradient, delta, and a copy during the look-ahead."""
_MOMENTS = {"muon": 1, "adamw": 2}
"""Of inner steps; each is there twice while a share is trained."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of one tier of a model with one sequence at once."""

    tier: int
    parameters: int
    state: int
    activations: int
    """Of a pass, with layers computed twice."""

    @property
    def needed(self) -> int:
        """What a device should have free."""
        return int(MARGIN * (self.state + self.activations))


def state_bytes(settings: Settings, parameters: int) -> int:
    """What stays, of a tier with so many parameters."""
    each = _SHARED if isinstance(settings, Distro) else _SHARED + 8 * _MOMENTS[settings.inner_optimizer]
    return each * parameters


def footprint(schema: Schema, tier: int, seq_len: int, *, recompute: bool = True) -> Footprint:
    """What a tier needs for sequences of `seq_len` tokens."""
    parameters = schema.state.parameters(tier)
    activations = pass_bytes(schema, tier, seq_len, recompute=recompute)
    return Footprint(tier, parameters, state_bytes(schema.optimizer, parameters), activations)


def pass_bytes(schema: Schema, tier: int, seq_len: int, *, recompute: bool) -> int:
    """What comes and goes in a pass of one sequence, beside weights and gradients."""
    config = schema.state.config
    with FakeTensorMode(), LiveBytes() as live:
        weights = {name: torch.empty(shape) for name, shape in config.parameter_shapes(tier).items()}
        model = config.build(tier, weights)
        model.recompute = recompute and model.can_recompute
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        standing = live.now
        model.loss(torch.zeros(1, seq_len, dtype=torch.int64)).backward()
    return int(live.peak - standing)


def largest_that_fits(tiers: int, free: int, of: Callable[[int], Footprint]) -> Footprint | None:
    """The largest tier of a model that `free` bytes hold, None if there is none."""
    return next((found for found in map(of, range(tiers)) if found.needed <= free), None)
