"""Choose coefficients and count votes with Triton kernels on a CUDA device.

A replica with different bits would diverge from all others. So before its first use on a device, a
kernel's output is compared bit by bit with torch's. A kernel that differs or does not compile is
not used, and the reason is logged once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from aftermath.model.schema import Segment
from aftermath.optim.blocks import UNUSED, Blocks
from aftermath.optim.lattice import LEAST, MOST, SMALLEST, fraction_bits, quantise
from aftermath.optim.layout import Group, LevelLayout, Part
from aftermath.optim.level_votes import Votes
from aftermath.optim.transform import ZERO_BELOW, matrices, strongest

logger = logging.getLogger(__name__)
# Kernels count votes if at most 1/4 of a block is kept. More positions would need too much memory.
_FEW = 4
_LANES = 1024
_LARGEST_BLOCK = 1 << 14  # `kernels.triton_blocks.choose` holds every number of a block at once
_PROVED = 16  # blocks of the comparison
_PROOF_BITS = 26  # fraction bits of means in the comparison


def works_on(device: torch.device) -> bool:
    """Return whether the device can run Triton kernels."""
    return device.type == "cuda" and torch.cuda.is_available() and find_spec("triton") is not None


def chooses(device: torch.device, block: int, topk: int, bits: int) -> bool:
    """Return whether kernels choose `topk` of `block` coefficients, rounded to a lattice of
    `bits`.
    """
    return works_on(device) and _choosing(device, block, topk, bits)


def proven(device: torch.device, alike: Callable[[torch.device], bool], what: str) -> bool:
    """Return whether kernels and torch give equal results on a device, according to `alike`. If
    not, log why.

    `what` is the log's wording for a difference, for example "differ from torch".
    """
    try:
        if alike(device):
            return True
    except Exception as error:  # the compiler may raise anything; torch does the same work
        what = f"fail: {(str(error).strip() or repr(error)).splitlines()[0]}"
    logger.warning("Triton kernels on %s %s; using torch instead", device, what)
    return False


@lru_cache(maxsize=64)
def _choosing(device: torch.device, block: int, topk: int, bits: int) -> bool:
    if block > _LARGEST_BLOCK:
        return False
    alike = partial(_chooses_alike, block=block, topk=topk, bits=bits)
    return proven(device, alike, "choose coefficients differently from torch")


def _chooses_alike(device: torch.device, *, block: int, topk: int, bits: int) -> bool:
    numbers = torch.randn(_PROVED, block, generator=torch.Generator().manual_seed(block))
    numbers[: _PROVED // 4].mul_(2).round_()  # many equal numbers and zeros
    numbers[_PROVED // 4 : _PROVED // 2] *= 2.0**-39  # many numbers below the lattice
    numbers[0] = 0
    smallest = SMALLEST if bits else ZERO_BELOW
    found = choose(numbers.to(device), topk, smallest, bits)
    indices, values = strongest(numbers, topk, smallest)
    expected = quantise(values, bits) if bits else values
    same = torch.equal(found[0].cpu(), indices)
    return same and torch.equal(found[1].cpu().view(torch.int32), expected.view(torch.int32))


def counts(device: torch.device, layouts: Iterable[LevelLayout]) -> bool:
    """Return whether kernels count votes on such levels on the device."""
    few = all(
        group.topk * _FEW <= group.block or group.block < _LANES
        for layout in layouts
        for group in layout.groups
    )
    return few and works_on(device) and _counting(device)


@lru_cache(maxsize=8)
def _counting(device: torch.device) -> bool:
    return proven(device, _counts_alike, "count differently from torch")


def _counts_alike(device: torch.device) -> bool:
    draws = torch.Generator().manual_seed(0)
    blocks = Blocks(Segment("proof", 0, None, 0, 0, (21, 150)), (8, 150), 70)
    group = Group(8, 150, 70, 3, 0, False)
    layout = LevelLayout((group,), (Part(blocks, 0, 0),))
    size = group.blocks * group.block
    members = 5
    most = 1 << 40
    rate = 0.3 * SMALLEST
    lattice = []
    signs = []
    for member in range(members):
        places = [
            number * group.block + torch.randperm(group.block, generator=draws)[:70]
            for number in range(3)
        ]
        positions = torch.cat(places[: 3 - (member == 0)])
        values = torch.randint(0, 4, positions.shape, generator=draws, dtype=torch.int8) * 2 - 3
        shifts = torch.randint(
            0, MOST - LEAST + 1, positions.shape, generator=draws, dtype=torch.uint8
        )
        lattice.append(Votes(0, positions, values, shifts))
        signs.append(Votes(0, positions, values.sign()))
    tensor = torch.randn(21, 150, generator=draws)
    divisors = [1.0 + math.sqrt(n) for n in range(members + 1)]
    found = tensor.to(device, copy=True)
    coefficients = torch.empty(3, 8, 150, dtype=torch.float64, device=device)
    OnGpu(lattice, layout, device).mean(found, layout.parts[0], most, divisors, rate)
    OnGpu(signs, layout, device).means(coefficients, 0, 0, _PROOF_BITS)
    given = torch.cat([vote.positions for vote in lattice])
    count = torch.bincount(given, minlength=size)
    sums = torch.zeros(size, dtype=torch.int64)
    total = sums.index_add(
        0, given, torch.cat([vote.multiples().clamp_(-most, most) for vote in lattice])
    )
    step = (total.double() / torch.tensor(divisors, dtype=torch.float64)[count] * rate).float()
    plain = sums.index_add(
        0, given, torch.cat([vote.values.long() << _PROOF_BITS for vote in signs])
    )
    mean = (2 * plain.abs() + count) // (2 * count.clamp(min=1)) * plain.sign()
    same = torch.equal(found.cpu(), tensor - step.view(24, 150)[:21])
    return same and torch.equal(coefficients.cpu().flatten(), mean.double())


def choose(coefficients: Tensor, topk: int, smallest: float, bits: int) -> tuple[Tensor, Tensor]:
    """Return indices int64 and values fp32 [n, topk] of coefficients fp32 [n, block].

    `bits` is 1 or 2 for lattice values, and 0 for floats.
    """
    from aftermath.kernels import triton_blocks

    blocks, size = coefficients.shape
    indices = torch.full((blocks, topk), UNUSED, dtype=torch.int64, device=coefficients.device)
    values = torch.zeros(blocks, topk, device=coefficients.device)
    least = int(torch.tensor(smallest).view(torch.int32))
    how: dict[str, Any] = {
        "TOPK": topk,
        "LANES": _power(size),
        "BITS": bits,
        "FRACTION": fraction_bits(topk),
    }
    triton_blocks.choose[(blocks,)](
        coefficients.contiguous(),
        indices,
        values,
        size,
        least,
        **how,
        LEAST=LEAST,
        MOST=MOST,
        **triton_blocks.EXACT,
    )
    return indices, values


class OnGpu:
    """All members' votes on a level, by block, on a device."""

    def __init__(self, votes: Sequence[Votes], layout: LevelLayout, device: torch.device) -> None:
        """Raise ValueError for positions outside the level."""
        self._layout = layout
        self._members = len(votes)
        self._device = device
        groups = layout.groups
        bases = [
            group.base + group.block * torch.arange(group.blocks, device=device) for group in groups
        ]
        end = groups[-1].base + groups[-1].block * groups[-1].blocks
        starts = torch.cat([*bases, torch.tensor([end], device=device)])
        self._blocks = len(starts) - 1
        self._steps = max(group.topk for group in groups).bit_length()
        places = []
        values = []
        shifts = []
        edges = []
        held = 0
        for vote in votes:
            positions, order = vote.positions.to(device).sort()
            if len(positions) and (int(positions[0]) < 0 or int(positions[-1]) >= int(starts[-1])):
                raise ValueError("a vote has a position outside the level")
            blocks = torch.searchsorted(starts, positions, right=True) - 1
            places.append((positions - starts[blocks]).to(torch.int32))
            values.append(vote.values.to(device)[order])
            shifts += [] if vote.shifts is None else [vote.shifts.to(device)[order]]
            edges.append(torch.searchsorted(positions, starts) + held)
            held += len(positions)
        self._places = torch.cat(places)
        self._values = torch.cat(values)
        self._edges = torch.stack(edges)
        self._shifts = torch.cat(shifts) if shifts else None

    def mean(
        self, tensor: Tensor, part: Part, most: int, divisors: Sequence[float], rate: float
    ) -> None:
        """Change a segment's tensor like `optim.mean`."""
        from aftermath.kernels import triton_blocks

        group = self._layout.groups[part.group]
        stack = matrices(tensor)
        by = torch.tensor([*divisors, rate], dtype=torch.float64, device=self._device)
        rows, columns = stack.shape[1:]
        across = part.blocks.grid[-1]
        each = part.blocks.count // len(stack)
        triton_blocks.mean[(part.blocks.count, _tiles(group.block))](
            *(
                stack,
                *stack.stride(),
                rows,
                columns,
                across,
                each,
                self._first(part),
                group.height,
                group.width,
            ),
            *(
                self._places,
                self._values,
                self._shifts,
                self._edges,
                self._members,
                self._blocks,
                most,
                by,
            ),
            LANES=_LANES,
            STEPS=self._steps,
            **triton_blocks.EXACT,
        )

    def means(self, coefficients: Tensor, group: int, first: int, mean_bits: int) -> None:
        """Write the means of a group's sign votes, from block `first` on.

        `coefficients` is float64 [n, h, w].
        """
        from aftermath.kernels import triton_blocks

        size = self._layout.groups[group].block
        triton_blocks.means[(len(coefficients), _tiles(size))](
            *(coefficients, size, self._base(group) + first),
            *(self._places, self._values, self._edges, self._members, self._blocks),
            MEAN_BITS=mean_bits,
            LANES=_LANES,
            STEPS=self._steps,
            **triton_blocks.EXACT,
        )

    def _first(self, part: Part) -> int:
        return self._base(part.group) + part.first

    def _base(self, group: int) -> int:
        """Return the number of a group's first block within the level."""
        return sum(earlier.blocks for earlier in self._layout.groups[:group])


def _tiles(size: int) -> int:
    return -(-size // _LANES)


def _power(size: int) -> int:
    """Return the least power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
