"""Prove the kernels of `optim.packed_sparse` before their first use on a device.

They must encode, check and count a small level as torch does on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from aftermath.model.levels import Segment
from aftermath.optim import packed_sparse
from aftermath.optim.blocks import Blocks
from aftermath.optim.codec import BadPayload, decode_on_cpu, encode_entries
from aftermath.optim.exact_signs import MEAN_BITS
from aftermath.optim.lattice import SMALLEST, quantise
from aftermath.optim.layout import LevelLayout, level_layout
from aftermath.optim.level_kernels import LevelTensors
from aftermath.optim.level_votes import Votes
from aftermath.optim.packed_sparse import PackedEntries
from aftermath.optim.result_format import ResultFormat, Transform, Values
from aftermath.optim.transform import ZERO_BELOW, cells, strongest
from aftermath.optim.vote_count import added_up

_MEMBERS = 4
_MOST = 1 << 40
_RATE = 0.3 * SMALLEST
# Index codes with low bits, short and of several steps; a bitmap of several steps without low bits;
# digits of whole blocks, and of several steps.
_BLOCKS = (
    ((40, 130), (20, 65), 30),
    ((60, 100), (60, 65), 600),
    ((2, 36, 40), (1, 36, 36), 600),
    ((70,), (30,), 30),
    ((45, 70), (45, 40), 1700),
)
"""Shape of a tensor, edges of its blocks, and top-k. Some blocks extend beyond the tensor."""


def proof_format(values: Values) -> ResultFormat:
    """Return the format of the small level, which has every kind of block."""
    blocks = tuple(
        Blocks(Segment(f"proof{number}", 0, None, 0, 0, shape), edges, topk)
        for number, (shape, edges, topk) in enumerate(_BLOCKS)
    )
    return ResultFormat(blocks, 1, Transform.NONE, values)


def alike(device: torch.device, values: Values) -> bool:
    """Return whether the kernels give the payloads, refusals and sums of torch on the CPU."""
    results = proof_format(values)
    draws = torch.Generator().manual_seed(7)
    packed_votes = []
    cpu_votes = []
    for member in range(_MEMBERS):
        chosen = draw_entries(results, draws, empty=member == 0)
        data = encode_entries(results, 0, chosen)
        on_device = [(indices.to(device), numbers.to(device)) for indices, numbers in chosen]
        if packed_sparse.encoded(results, 0, on_device) != data:
            return False
        vote = _checked(data, results, device)
        if vote is None:
            return False
        packed_votes.append(vote)
        cpu_votes.append(decode_on_cpu(data, results, 0))
    spoilt = spoilt_payloads(data, draws)
    if any(_valid(bad, results) != (_checked(bad, results, device) is not None) for bad in spoilt):
        return False
    if values is Values.SIGN:
        return _means_alike(packed_votes, cpu_votes, results, device)
    return _steps_alike(packed_votes, cpu_votes, results, device, draws)


def draw_entries(
    results: ResultFormat, draws: torch.Generator, *, empty: bool
) -> list[tuple[Tensor, Tensor]]:
    """Draw indices and values per group on the CPU. `empty` leaves a block without votes."""
    bits = results.values.lattice_bits
    chosen = []
    for group in level_layout(results, 0).groups:
        numbers = torch.randn(group.blocks, group.block, generator=draws)
        numbers *= 2.0 ** torch.randint(-45, 5, (group.blocks, 1), generator=draws)
        numbers[torch.rand(numbers.shape, generator=draws) < 0.3] = 0
        if empty:
            numbers[0] = 0
        indices, sent = strongest(numbers, group.topk, SMALLEST if bits else ZERO_BELOW)
        chosen.append((indices, quantise(sent, bits) if bits else sent))
    return chosen


def spoilt_payloads(data: bytes, draws: torch.Generator, flips: int = 8) -> list[bytes]:
    """Return payloads with all bits set, with none, and with one random bit flipped."""
    payloads = [b"\xff" * len(data), bytes(len(data))]
    for bit in torch.randint(0, 8 * len(data), (flips,), generator=draws).tolist():
        own = bytearray(data)
        own[bit // 8] ^= 1 << bit % 8
        payloads.append(bytes(own))
    last = bytearray(data)
    last[-1] |= 0x80
    return [*payloads, bytes(last)]


def _checked(data: bytes, results: ResultFormat, device: torch.device) -> PackedEntries | None:
    unpack = partial(decode_on_cpu, results=results, level=0)
    return packed_sparse.checked(data, results, 0, unpack, device)


def _valid(data: bytes, results: ResultFormat) -> bool:
    """Return whether torch decodes the payload."""
    try:
        decode_on_cpu(data, results, 0)
    except BadPayload:
        return False
    return True


def _steps_alike(
    packed_votes: Sequence[PackedEntries],
    cpu_votes: Sequence[Votes],
    results: ResultFormat,
    device: torch.device,
    draws: torch.Generator,
) -> bool:
    """Return whether tensors change by equal means. One tensor stores the means instead."""
    layout = level_layout(results, 0)
    divisors = [1.0 + count**0.5 for count in range(_MEMBERS + 1)]
    tensors = [torch.randn(part.segment.shape, generator=draws) for part in layout.parts]
    there = [tensor.to(device, copy=True) for tensor in tensors]
    stores = [number == 1 for number in range(len(tensors))]
    table = LevelTensors(layout, there, stores=stores)
    packed_sparse.count(packed_votes, table, results, _MOST, divisors, _RATE)
    sums, counts = added_up(cpu_votes, layout.numbers, _MOST, torch.device("cpu"))
    by = torch.tensor([1.0, *divisors[1:]], dtype=torch.float64)[counts.long()]
    steps = _by_group((sums.double() / by * _RATE).float(), layout)
    for part, tensor, stored in zip(layout.parts, tensors, stores, strict=True):
        blocks = part.of(steps[part.group]).view(-1, *_edges(layout, part.group))
        for place, step in cells(tensor, blocks, part.blocks):
            place.copy_(step) if stored else place.sub_(step)
    return all(
        torch.equal(tensor.view(torch.int32), other.cpu().view(torch.int32))
        for tensor, other in zip(tensors, there, strict=True)
    )


def _means_alike(
    packed_votes: Sequence[PackedEntries],
    cpu_votes: Sequence[Votes],
    results: ResultFormat,
    device: torch.device,
) -> bool:
    """Return whether the means of signs are equal."""
    of = packed_sparse.sparse_level(results, 0, device)
    means = [
        means.cpu().flatten() for _, means in packed_sparse.sign_means(packed_votes, of, MEAN_BITS)
    ]
    sums, counts = added_up(cpu_votes, of.layout.numbers, 1, torch.device("cpu"))
    sizes = (2 * (sums.abs() << MEAN_BITS) + counts) // (2 * counts.long()).clamp(min=1)
    return torch.equal(torch.cat(means), (sizes * sums.sign()).double())


def _by_group(flat: Tensor, layout: LevelLayout) -> list[Tensor]:
    """Return numbers by position as one tensor [blocks, size] per group."""
    sizes = [group.blocks * group.block for group in layout.groups]
    return [
        numbers.view(group.blocks, group.block)
        for group, numbers in zip(layout.groups, flat.split(sizes), strict=True)
    ]


def _edges(layout: LevelLayout, group: int) -> tuple[int, int]:
    return layout.groups[group].height, layout.groups[group].width
