"""Launch Triton kernels on all blocks of a level at once, and build the tables they read.

The kernels are in `kernels.triton_levels`. Before the first use on a device, their results are
compared with those of torch on the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from aftermath.model.levels import Segment
from aftermath.model.segments import view
from aftermath.optim import triton_gate
from aftermath.optim.blocks import UNUSED, Blocks
from aftermath.optim.layout import Group, LevelLayout, Part
from aftermath.optim.transform import cells, matrices, padding, strongest

LANES = 1024


class LevelTensors:
    """The addresses of a level's numbers: for each part its tensor and its rows of blocks."""

    def __init__(
        self,
        layout: LevelLayout,
        tensors: Sequence[Tensor],
        rows: Sequence[Tensor] | None = None,
        stores: Sequence[bool] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Build the table that kernels read.

        `tensors` has one tensor per part, in its segment's shape. `rows` has blocks, fp32
        [blocks, h, w], per group. `stores[part]` makes a mean be stored in the tensor
        instead of subtracting it.
        """
        lines = []
        first = 0
        start = 0
        for number, (part, tensor) in enumerate(zip(layout.parts, tensors, strict=True)):
            group = layout.groups[part.group]
            stack = matrices(tensor)
            each = part.blocks.count // len(stack)
            across = part.blocks.grid[-1]
            subtracts = int(stores is None or not stores[number])
            position = group.base + part.first * group.block
            source = position if rows is None else part.of(rows[part.group]).data_ptr()
            shape = (*stack.stride(), *stack.shape[1:], group.height, group.width, across, each)
            lines.append([stack.data_ptr(), *shape, first, start, subtracts, source])
            first += part.blocks.count
            start += part.blocks.count * group.block
        self.device = device or tensors[0].device
        self.blocks = first
        self.tiles = -(-max(group.block for group in layout.groups) // LANES)
        self.lines = torch.tensor(lines, dtype=torch.int64).to(self.device)
        self.part_of = part_numbers(layout, self.device)
        self._held = (tensors, rows)  # keep them alive: the table has their addresses


@lru_cache(maxsize=64)
def part_numbers(layout: LevelLayout, device: torch.device) -> Tensor:
    """Return the part number of each block, int32 [blocks] in canonical order."""
    counts = torch.tensor([part.blocks.count for part in layout.parts])
    return torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), counts).to(device)


def how(**constants: int) -> dict[str, Any]:
    """Return the constants and options of every kernel, plus `constants`."""
    from aftermath.kernels import triton_levels, triton_topk

    return {"COLUMNS": triton_levels.COLUMNS, "LANES": LANES, **constants, **triton_topk.EXACT}


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which `device` is current: Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def add(table: LevelTensors, decay: float, factor: float) -> None:
    """blocks <- blocks * decay + factor * tensors, and 0 beyond the ends of tensors."""
    from aftermath.kernels import triton_levels

    by = torch.tensor([decay, factor], device=table.device)
    with on_device(table.device):
        triton_levels.gather[(table.blocks, table.tiles)](table.lines, table.part_of, by, **how())


def take(rows: Tensor, indices: Tensor, values: Tensor) -> None:
    """rows [blocks, h, w] <- rows - values at the used indices [blocks, topk]."""
    from aftermath.kernels import triton_levels, triton_topk

    blocks, topk = indices.shape
    with on_device(rows.device):
        triton_levels.subtract_sent[(blocks, -(-topk // LANES))](
            *(rows, indices.contiguous(), values.contiguous(), rows[0].numel(), topk),
            LANES=LANES,
            **triton_topk.EXACT,
        )


def go_ahead(table: LevelTensors, rate: float) -> None:
    """tensors <- tensors - rate * sign(blocks)."""
    from aftermath.kernels import triton_levels

    by = torch.tensor([rate], device=table.device)
    with on_device(table.device):
        triton_levels.step_by_signs[(table.blocks, table.tiles)](
            table.lines, table.part_of, by, **how()
        )


def works(device: torch.device) -> bool:
    """Return whether kernels on this device move numbers between blocks and tensors like torch."""
    return triton_gate.works_on(device) and _moving(device)


@lru_cache(maxsize=8)
def _moving(device: torch.device) -> bool:
    return triton_gate.proven(device, _moves_alike, "move values differently from torch")


def proof_layout(chunks: Sequence[tuple[int, int]] = ((11, 120), (7, 50), (1, 30))) -> LevelLayout:
    """Return a small level with blocks beyond the ends of its tensors, and a stack of matrices."""
    shapes = ((21, 130), (2, 15, 90), (70,))
    groups = []
    parts = []
    base = 0
    for number, ((height, width), shape) in enumerate(zip(chunks, shapes, strict=True)):
        edges = (width,) if len(shape) == 1 else (*(1,) * (len(shape) - 2), height, width)
        blocks = Blocks(Segment(f"proof{number}", 0, None, 0, 0, shape), edges, height * width)
        groups.append(Group(height, width, height * width, blocks.count, base, True))
        parts.append(Part(blocks, number, 0))
        base += blocks.count * height * width
    return LevelLayout(tuple(groups), tuple(parts))


def _moves_alike(device: torch.device) -> bool:
    """Return whether every kernel gives the numbers of torch on the CPU."""
    layout = proof_layout()
    draws = torch.Generator().manual_seed(3)
    decay = 0.95
    factor = 1.0
    rate = 0.3
    rows = [
        torch.randn(group.blocks, group.height, group.width, generator=draws)
        for group in layout.groups
    ]
    tensors = [torch.randn(part.segment.shape, generator=draws) for part in layout.parts]
    device_blocks = [blocks.to(device, copy=True) for blocks in rows]
    device_tensors = [tensor.to(device, copy=True) for tensor in tensors]
    for blocks, other in zip(rows, device_blocks, strict=True):
        indices, values = strongest(
            torch.randn(len(blocks), blocks[0].numel(), generator=draws).round_(), 60
        )
        take(other, indices.to(device), values.to(device))
        blocks.flatten(1).sub_(
            torch.zeros(len(blocks), UNUSED + 1).scatter_(1, indices, values)[
                :, : blocks[0].numel()
            ]
        )
    table = LevelTensors(layout, device_tensors, device_blocks)
    add(table, decay, factor)
    go_ahead(table, rate)
    for blocks in rows:
        blocks.mul_(decay)
    for part, tensor in zip(layout.parts, tensors, strict=True):
        blocks = part.of(rows[part.group])
        for beyond in padding(blocks, part.blocks):
            beyond.zero_()
        for number, place in cells(tensor, blocks, part.blocks):
            place.add_(number, alpha=factor)
        for number, place in cells(tensor, blocks.sign().mul_(rate), part.blocks):
            number.sub_(place)
    pairs = zip([*rows, *tensors], [*device_blocks, *device_tensors], strict=True)
    return all(
        torch.equal(blocks.view(torch.int32), other.cpu().view(torch.int32))
        for blocks, other in pairs
    )


def tensors_of(layout: LevelLayout, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the segments of a level, by part."""
    return [view(tensors, part.segment) for part in layout.parts]
