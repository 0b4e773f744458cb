"""Assign the moments of whole parameters to the ranks of a member.

One rank computes the step of a tensor, because a matrix is orthogonalized as a whole. Matrices of
Muon are assigned by cost (numbers times shorter edge), all other tensors by size. The largest go
first, each to the rank with the least, so all ranks find the same split.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod

import torch

from aftermath.model.schema import is_hidden_matrix
from aftermath.optim.inner_optimizer import inner_optimizer
from aftermath.optim.moments import Kind, moment_kinds
from aftermath.optim.schema import Schema

Shapes = Mapping[str, tuple[int, ...]]


class MomentPlan:
    """The parameters and moments of each rank."""

    def __init__(self, schema: Schema, tier: int, ranks: int) -> None:
        self.settings = schema.optimizer
        self.shapes, orthogonal = inner_shapes(schema, tier)
        self.owned = split_moments(self.shapes, orthogonal, ranks)
        blank = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        self.kinds = moment_kinds(inner_optimizer(blank, self.settings), blank)
        """Shape and type of every moment, by the names of `optim.moments`."""
        self._owner = {name: rank for rank, own in enumerate(self.owned) for name in own}

    def owner(self, path: str) -> int:
        """Return the rank that holds a moment."""
        return self._owner[path.partition("/")[2]]

    def moments_of(self, rank: int) -> dict[str, Kind]:
        """Return the moments of a rank after a step of all its parameters."""
        return {path: kind for path, kind in self.kinds.items() if self.owner(path) == rank}


def inner_shapes(schema: Schema, tier: int) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Return the shapes of the parameters that the inner optimizer steps, and whether it is Muon.

    The shapes are empty without an inner optimizer.
    """
    settings = schema.optimizer
    config = schema.state.config
    if settings.inner_optimizer is None:
        return {}, False
    shapes = {
        name: tuple(shape)
        for name, shape in config.parameter_shapes(tier).items()
        if not config.balances(name)
    }
    return shapes, settings.inner_optimizer == "muon"


def split_moments(shapes: Shapes, orthogonal: bool, ranks: int) -> list[list[str]]:
    """Return the tensors of each rank, in the order in which it steps them.

    `orthogonal`: whether the optimizer orthogonalizes hidden matrices.
    """
    hidden = {
        name for name, shape in shapes.items() if orthogonal and is_hidden_matrix(name, shape)
    }
    owned: list[list[str]] = [[] for _ in range(ranks)]

    def hand_out(names: Collection[str], weight: Callable[[str], int]) -> None:
        loads = [sum(map(weight, own)) for own in owned]
        for name in sorted(names, key=lambda name: (-weight(name), name)):
            least = loads.index(min(loads))
            owned[least].append(name)
            loads[least] += weight(name)

    hand_out(hidden, lambda name: prod(shapes[name]) * min(shapes[name][-2:]))
    hand_out(shapes.keys() - hidden, lambda name: prod(shapes[name]))
    return owned
