"""One rank's part of the inner optimizer: the moments of its parameters, and their steps.

Moments are on the rank's device. The rank keeps its weights and summed gradients of a pass until
the step, and sends the new parameters. It does not send differences, because adding one to a weight
can lose bits. A step has the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aftermath.optim.clip import scale
from aftermath.optim.inner_optimizer import inner_optimizer, step_at
from aftermath.optim.moments import Kind, States, bytes_of, moment_kinds, moments_in, states_of
from aftermath.optim.schema import Schema
from aftermath.optim.state_merkle import BlockSpan, block_of, digests_of
from aftermath.parallel.commands import (
    CopyForUndo,
    CopyMoments,
    EndShare,
    MomentBlock,
    MomentCommand,
    MomentDigests,
    RestoreMoments,
    StepParameters,
)
from aftermath.parallel.group import Ranks, as_byte_tensor
from aftermath.parallel.moment_split import moments_of, split_moments


class MomentPlan:
    """Assign the parameters and their moments to ranks."""

    def __init__(self, schema: Schema, tier: int, ranks: int) -> None:
        self.settings = schema.optimizer
        self.shapes, orthogonal = moments_of(schema, tier)
        self.owned = split_moments(self.shapes, orthogonal, ranks)
        blank = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        self.kinds = moment_kinds(inner_optimizer(blank, self.settings), blank)
        """Shape and type of every moment, by the names of `optim.moments`."""
        self._owner = {name: rank for rank, own in enumerate(self.owned) for name in own}

    def owner(self, path: str) -> int:
        """Return the rank that holds a moment."""
        return self._owner[parameter_of(path)]

    def of(self, rank: int, stepped: frozenset[str]) -> dict[str, Kind]:
        """Return a rank's moments after these parameters were stepped, ordered by name."""
        return {
            path: kind
            for path, kind in sorted(self.kinds.items())
            if parameter_of(path) in stepped and self.owner(path) == rank
        }


class InnerShard:
    """Hold this rank's moments and step its parameters."""

    def __init__(self, ranks: Ranks, schema: Schema, tier: int) -> None:
        self.plan = MomentPlan(schema, tier, ranks.size)
        self._ranks = ranks
        self._own = self.plan.owned[ranks.rank]
        self._states: States = {}
        self._before: States = {}
        self._weights: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        """Gradients of the last pass, not applied yet. Empty on the first rank, which has all
        gradients elsewhere.
        """
        held = self.plan.of(ranks.rank, frozenset(self._own))
        kept = [(self.plan.shapes[name], torch.float32) for name in self._own if ranks.rank]
        ranks.reserved = 2 * sum(map(bytes_of, held.values())) + sum(map(bytes_of, kept))

    def begin(self) -> None:
        """Drop the weights and gradients of the last pass."""
        self._weights = {}
        self._gradients = {}

    def keep_weight(self, name: str, whole: Tensor) -> None:
        """Keep a weight if its parameter is this rank's."""
        if name in self._own:
            self._weights[name] = whole

    def keep_gradient(self, name: str, whole: Tensor) -> None:
        """Keep a gradient if its parameter is this rank's."""
        if name in self._own:
            self._gradients[name] = whole

    def follow(self, command: MomentCommand) -> None:
        """Run a command of the first rank and send it the result."""
        if isinstance(command, StepParameters):
            stepped = (
                self._stepped(name, command) for name in self._own if name not in command.without
            )
            for arrived in [self._ranks.isend(tensor, 0) for tensor in stepped]:
                arrived()
            return
        taken: dict[str, Tensor] = {}
        if isinstance(command, RestoreMoments):
            kinds = self.plan.of(self._ranks.rank, frozenset(self._own))
            taken = {path: self._ranks.receive(*kind, 0) for path, kind in kinds.items()}
        for reply in self.perform(command, taken):
            self._ranks.send(reply, 0)

    def _stepped(self, name: str, command: StepParameters) -> Tensor:
        """Return a parameter after a step with the weight and gradient that were kept."""
        gradient = self._gradients.pop(name)
        scale([gradient], command.factors)
        return self.step(name, gradient, self._weights.pop(name), command.rate)

    @torch.no_grad()
    def step(self, name: str, gradient: Tensor, weight: Tensor, rate: float) -> Tensor:
        """Return the parameter after a step. It changes in place if it is on this rank's device."""
        here = weight.detach().to(self._ranks.device)
        here.grad = gradient.to(self._ranks.device)
        optimizer = inner_optimizer({name: here}, self.plan.settings)
        optimizer.state[here] = self._states.setdefault(name, {})
        step_at(optimizer, rate)
        return here

    def perform(self, command: MomentCommand, taken: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Run a command on the moments, and return the tensors to send back."""
        match command:
            case CopyForUndo():
                self._before = _copied(self._states)
            case EndShare(undo):
                if undo:
                    self._states = self._before
                self._before = {}
            case RestoreMoments():
                self._states = states_of(taken, dict.fromkeys(self._own, self._ranks.device))
            case MomentDigests():
                return [as_byte_tensor(b"".join(digests_of(self.moments())))]
            case MomentBlock(name, start, stop):
                return (
                    [as_byte_tensor(block_of(self.moments(), BlockSpan(name, start, stop)))]
                    if self._is_own(name)
                    else []
                )
            case CopyMoments():
                return [tensor for _, tensor in sorted(self.moments().items())]
            case _:
                self._states = {}
                self._before = {}
        return []

    def moments(self) -> dict[str, Tensor]:
        """Return the moments that this rank holds."""
        return moments_in(self._states)

    def _is_own(self, path: str) -> bool:
        return self.plan.owner(path) == self._ranks.rank


def parameter_of(path: str) -> str:
    """Return the parameter that a moment belongs to."""
    return path.partition("/")[2]


def _copied(states: States) -> States:
    def copy(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    return {name: {key: copy(value) for key, value in own.items()} for name, own in states.items()}
