"""One rank's part of the inner optimizer: the moments of its parameters, and their steps.

Moments are on the rank's device. Each pass shows the rank its weights and summed gradients, so it
keeps both until the step and sends the new parameter. It does not send differences: adding one to a
weight can lose bits. A step has the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aftermath.optim.clip import scale
from aftermath.optim.inner_optimizer import inner_optimizer, step_at
from aftermath.optim.moments import Kind, States, bytes_of, moment_kinds, moments_in, states_of
from aftermath.optim.private_blocks import BlockSpan, block_of, digests_of
from aftermath.optim.schema import Schema
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.parallel.commands import (
    Advance,
    CopyMoments,
    Mark,
    MomentBlock,
    MomentDigests,
    OfMoments,
    Settle,
    TakeMoments,
)
from aftermath.parallel.group import Ranks, octets
from aftermath.parallel.moment_split import deal, moments_of


class InnerPlan:
    """Which parameters are whose."""

    def __init__(self, schema: Schema, tier: int, ranks: int) -> None:
        assert isinstance(schema.optimizer, SparseLoCo)
        self.settings = schema.optimizer
        self.shapes, orthogonal = moments_of(schema, tier)
        self.dealt = deal(self.shapes, orthogonal, ranks)
        blank = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        self.kinds = moment_kinds(inner_optimizer(blank, self.settings), blank)
        """Of all moments, as `optim.moments` names them."""
        self._owner = {name: rank for rank, own in enumerate(self.dealt) for name in own}

    def owner(self, path: str) -> int:
        """Whose a moment is."""
        return self._owner[parameter_of(path)]

    def of(self, rank: int, stepped: frozenset[str]) -> dict[str, Kind]:
        """A rank's moments once these parameters were stepped, in the order of their names."""
        return {
            path: kind
            for path, kind in sorted(self.kinds.items())
            if parameter_of(path) in stepped and self.owner(path) == rank
        }


class InnerShard:
    """What this rank remembers, and what it does with it."""

    def __init__(self, ranks: Ranks, schema: Schema, tier: int) -> None:
        self.plan = InnerPlan(schema, tier, ranks.size)
        self._ranks, self._own = ranks, self.plan.dealt[ranks.rank]
        self._states: States = {}
        self._before: States = {}
        self._weights: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        """Of the last pass, and not stepped yet; none on the first rank, which has all."""
        held = self.plan.of(ranks.rank, frozenset(self._own))
        kept = [(self.plan.shapes[name], torch.float32) for name in self._own if ranks.rank]
        ranks.reserved = 2 * sum(map(bytes_of, held.values())) + sum(map(bytes_of, kept))

    def begin(self) -> None:
        """Begin with new weights. Gradients left from the last pass are not stepped any more."""
        self._weights, self._gradients = {}, {}

    def keep_weight(self, name: str, whole: Tensor) -> None:
        """A parameter that was handed out, which is nobody else's."""
        if name in self._own:
            self._weights[name] = whole

    def keep_gradient(self, name: str, whole: Tensor) -> None:
        """Its gradient, in the same way."""
        if name in self._own:
            self._gradients[name] = whole

    def follow(self, order: OfMoments) -> None:
        """Do what the first rank says, and tell it what it asks for."""
        if isinstance(order, Advance):
            stepped = (
                self._stepped(name, order) for name in self._own if name not in order.without
            )
            for arrived in [self._ranks.post(tensor, 0) for tensor in stepped]:
                arrived()
            return
        taken: dict[str, Tensor] = {}
        if isinstance(order, TakeMoments):
            kinds = self.plan.of(self._ranks.rank, frozenset(self._own))
            taken = {path: self._ranks.receive(*kind, 0) for path, kind in kinds.items()}
        for told in self.perform(order, taken):
            self._ranks.send(told, 0)

    def _stepped(self, name: str, order: Advance) -> Tensor:
        """A parameter after a step of what was kept of it."""
        gradient = self._gradients.pop(name)
        scale([gradient], order.factors)
        return self.step(name, gradient, self._weights.pop(name), order.rate)

    @torch.no_grad()
    def step(self, name: str, gradient: Tensor, weight: Tensor, rate: float) -> Tensor:
        """The parameter after a step; in place where it is on this rank's device."""
        here = weight.detach().to(self._ranks.device)
        here.grad = gradient.to(self._ranks.device)
        optimizer = inner_optimizer({name: here}, self.plan.settings)
        optimizer.state[here] = self._states.setdefault(name, {})
        step_at(optimizer, rate)
        return here

    def perform(self, order: OfMoments, taken: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Do what is said of moments; what is told."""
        match order:
            case Mark():
                self._before = _copied(self._states)
            case Settle(undo):
                if undo:
                    self._states = self._before
                self._before = {}
            case TakeMoments():
                self._states = states_of(taken, dict.fromkeys(self._own, self._ranks.device))
            case MomentDigests():
                return [octets(b"".join(digests_of(self.moments())))]
            case MomentBlock(name, start, stop):
                return (
                    [octets(block_of(self.moments(), BlockSpan(name, start, stop)))]
                    if self._is_own(name)
                    else []
                )
            case CopyMoments():
                return [tensor for _, tensor in sorted(self.moments().items())]
            case _:
                self._states, self._before = {}, {}
        return []

    def moments(self) -> dict[str, Tensor]:
        """Those that are here."""
        return moments_in(self._states)

    def _is_own(self, path: str) -> bool:
        return self.plan.owner(path) == self._ranks.rank


def parameter_of(path: str) -> str:
    """Of which parameter a moment is."""
    return path.partition("/")[2]


def _copied(states: States) -> States:
    def copy(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    return {name: {key: copy(value) for key, value in own.items()} for name, own in states.items()}
