"""Convert a member's votes to tensors in the shapes of the parameters, to inspect a run.

Training does not use this. Values are those that the apply counts, after an inverse transform in
fp32. Parameters are converted one at a time, so only the largest tensor must fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from aftermath.model.segments import view
from aftermath.optim.layout import LevelLayout, Part, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.parts import parts_of
from aftermath.optim.result_format import Transform
from aftermath.optim.schema import Schema
from aftermath.optim.transform import cells, inverse


def dense_shapes(schema: Schema) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes that `dense` yields: all parameters of the full model."""
    return dict(sorted(schema.state.config.parameter_shapes().items()))


@torch.no_grad()
def dense(schema: Schema, votes: Mapping[int, Votes], lr: float) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter's name and fp32 tensor, in the full model's shape.

    Numbers without votes, and levels without votes, are zero.
    """
    parts: dict[str, list[tuple[int, Part]]] = {}
    for level in votes:
        for part in level_layout(schema.results, level).parts:
            parts.setdefault(part.segment.name, []).append((level, part))
    sorted_votes = {level: _sorted(vote, schema, lr) for level, vote in votes.items()}
    for name, shape in dense_shapes(schema).items():
        tensor = torch.zeros(shape)
        for level, part in parts.get(name, ()):
            blocks = _blocks(part, level_layout(schema.results, level), *sorted_votes[level])
            if schema.results.transform is Transform.DCT:
                blocks = inverse(blocks)
            for number, value in cells(view({name: tensor}, part.segment), blocks, part.blocks):
                number.copy_(value)
        yield name, tensor


def _sorted(votes: Votes, schema: Schema, lr: float) -> tuple[Tensor, Tensor]:
    """Return positions in ascending order, and their values."""
    positions, order = votes.positions.sort()
    return positions, parts_of(schema.optimizer).counted(votes, lr)[order]


def _blocks(part: Part, layout: LevelLayout, positions: Tensor, values: Tensor) -> Tensor:
    """Return the blocks [n, h, w] of one segment."""
    group = layout.groups[part.group]
    blocks = torch.zeros(part.blocks.count, group.height, group.width)
    start = group.base + part.first * group.block
    first, last = torch.searchsorted(
        positions, torch.tensor([start, start + blocks.numel()])
    ).tolist()
    blocks.view(-1)[positions[first:last] - start] = values[first:last]
    return blocks
