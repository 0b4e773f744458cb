"""Results that keep every number: encoded from a replica's device, and counted on it, without places.

What the wire has and what is counted are those of `optim.codec` and `optim.mean`, bit by bit.

Why counting is exact: a vote is a digit times a power of two, both of which float64 holds, and so it does every sum of
at most 256 of them (`optim.lattice`). All else is a comparison, or one operation of IEEE on two tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from aftermath.optim import digits
from aftermath.optim.blocks import UNUSED
from aftermath.optim.format import EXPONENT_BITS, Values
from aftermath.optim.lattice import EXPONENT_BIAS, FRACTION_BITS, HALF, LEAST, MOST
from aftermath.optim.layout import LevelLayout
from aftermath.optim.votes import Votes, WholeVotes

_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 23}
"""Numbers that are counted at once: what a core's cache holds, or what keeps a GPU busy. MPS has no float64, and leaves
it to the CPU.
"""


def encode(layout: LevelLayout, chosen: Sequence[tuple[Tensor, Tensor]], values: Values) -> bytes:
    """The payload of a level, of indices int64 and fp32 values [blocks, numbers] per group, as `transform.strongest`
    orders them, on any device. Raises ValueError for values that a lattice does not have.
    """
    rows, exponents = [], []
    for indices, sent in chosen:
        small, own = _digits(sent, three=values is Values.TWO_BIT)
        rows.append(_in_place(indices, small))
        exponents.append(own)
    codes = layout.canonical(exponents).cpu().numpy()
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little", count=EXPONENT_BITS)
    written = digits.to_bytes(layout.canonical(rows).cpu().numpy(), values.bits)
    return np.packbits(bits, bitorder="little").tobytes() + written


def votes_of(results: Mapping[int, Sequence[Votes]]) -> dict[int, list[WholeVotes]] | None:
    """By level, where there are any; None if one of them is not of every number."""
    found = {level: [vote for vote in votes if isinstance(vote, WholeVotes)] for level, votes in results.items()}
    if any(len(found[level]) < len(votes) for level, votes in results.items()):
        return None
    return {level: votes for level, votes in found.items() if votes}


def means(
    votes: Sequence[WholeVotes],
    layout: LevelLayout,
    most: int,
    divisors: Sequence[float],
    rate: float,
    device: torch.device,
) -> list[Tensor]:
    """What is subtracted, by group: fp32 blocks [n, h, w] on `device`, zero where nobody voted.

    `divisors` are by the number of those who voted; no vote counts more than `most`, and `rate` is of the lattice's
    smallest value.
    """
    place = device if device.type in _AT_ONCE else torch.device("cpu")
    by = torch.tensor([1.0, *divisors[1:]], dtype=torch.float64, device=place)  # what nobody voted for stays 0
    alike = len(set(divisors[1:])) == 1
    found = []
    for number, group in enumerate(layout.groups):
        steps = torch.empty(group.blocks, group.block, device=place)
        batch = max(1, _AT_ONCE[place.type] // group.block)
        for first in range(0, group.blocks, batch):
            rows = slice(first, first + batch)
            sums = torch.zeros(steps[rows].shape, dtype=torch.float64, device=place)
            counts = torch.zeros(() if alike else sums.shape, dtype=torch.int16, device=place)
            for vote in votes:
                own = vote.digits[number][rows].to(place)
                sums.add_((own * _powers(vote.moved[number][rows].to(place))).clamp_(-most, most))
                if not alike:
                    counts.add_(own != 0)
            sums.div_(by[1] if alike else by[counts.int()])
            steps[rows] = sums.mul_(rate)
        found.append(steps.view(group.blocks, group.height, group.width).to(device))
    return found


def _powers(exponents: Tensor) -> Tensor:
    """2^exponent in float64, made from its bits."""
    return (exponents.long() + 1023 << 52).view(torch.float64)


def _digits(sent: Tensor, *, three: bool) -> tuple[Tensor, Tensor]:
    """The digits int8 of entries, and the code of the exponent that each block shares: uint8 [blocks, 1]."""
    bits = sent.view(torch.int32)
    thrice = (bits & HALF != 0) if three else torch.zeros_like(bits, dtype=torch.bool)
    small = sent.sign().to(torch.int8).mul_(1 + 2 * thrice.to(torch.int8))
    first, voted = bits[:, :1], small[:, :1] != 0
    exponent = (first >> FRACTION_BITS & 0xFF) - EXPONENT_BIAS - thrice[:, :1].to(torch.int32)
    unit = ((exponent + EXPONENT_BIAS) << FRACTION_BITS).view(torch.float32)
    within = (exponent >= LEAST) & (exponent <= MOST) | ~voted
    if not bool(within.all()) or not torch.equal(small * torch.where(voted, unit, 0.0), sent):
        raise ValueError("a value is not on the lattice, or not its block's")
    return small, torch.where(voted, exponent - LEAST + 1, 0).to(torch.uint8)


def _in_place(indices: Tensor, small: Tensor) -> Tensor:
    """Digits by place, of those of entries; unused entries are the last ones of a block."""
    used = indices != UNUSED
    if bool(used.all()):
        return small
    blocks, numbers = small.shape
    found = small.new_zeros(blocks, numbers + 1)  # the last column takes what is unused
    return found.scatter_(1, torch.where(used, indices, numbers), small)[:, :numbers]
