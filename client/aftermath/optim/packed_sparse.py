"""Encode, check and count sparse results on a GPU, without unpacking them.

The bytes are those of `optim.codec`. If a check fails, `optim.codec` decodes the payload again to
name the fault. `optim.packed_dense` does the same for results that keep every number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from aftermath.optim import digits, level_kernels, triton_gate
from aftermath.optim.bitstrings import pack_bits
from aftermath.optim.index_sizes import bits_of, low_bits_of
from aftermath.optim.lattice import LEAST, MOST
from aftermath.optim.layout import Group, LevelLayout, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.packed_dense import Unpack, downloaded, pack_codes, uploaded
from aftermath.optim.result_format import EXPONENT_BITS, ResultFormat, Values, whole_bytes

_SUMS_AT_ONCE = 1 << 26
"""Sums in memory at once: 512 MiB."""
_FEWEST_LANES = 128  # threads of a program


class PackedEntries(Votes):
    """Sparse votes of a level, stored as a payload on a device."""

    payload: Tensor
    """Bytes, uint8 [bytes]."""

    def __init__(self, level: int, payload: Tensor, kind: torch.dtype, unpack: Unpack) -> None:
        vars(self).update(level=level, payload=payload, _kind=kind, _unpack=unpack)

    @property
    def kind(self) -> torch.dtype:
        """Return int8 for signs and int64 for lattice values."""
        kind: torch.dtype = vars(self)["_kind"]
        return kind

    @cached_property
    def _unpacked(self) -> Votes:
        unpack: Unpack = vars(self)["_unpack"]
        return unpack(self.payload.cpu().numpy().tobytes())

    @property
    def positions(self) -> Tensor:
        """Return the positions on the CPU: see `Votes`."""
        return self._unpacked.positions

    @property
    def values(self) -> Tensor:
        """Return the values on the CPU: see `Votes`."""
        return self._unpacked.values

    @property
    def shifts(self) -> Tensor | None:
        """Return the shifts on the CPU: see `Votes`."""
        return self._unpacked.shifts


@dataclass(frozen=True, eq=False)
class SparseLevel:
    """Tables on a device that locate the bits of each block in a level's payload."""

    layout: LevelLayout
    value_bits: int
    has_exponents: bool
    lines: Tensor
    """The table of `kernels.triton_sparse`, int64 [parts, COLUMNS]."""
    part_of: Tensor
    numbers: tuple[Tensor, ...]
    """Canonical numbers of each group's blocks, int64 [blocks]."""
    starts: dict[str, int]
    """Bytes at which exponents, signs, sizes and digits begin."""
    ends: tuple[tuple[int, int], ...]
    """The partly used last byte of each string, and the number of bits used in it."""
    digit_count: int

    @property
    def lanes(self) -> int:
        """Return the number of lanes of a program, enough for most blocks in one step."""
        longest = max(_FEWEST_LANES, *map(_longest_string, self.layout.groups))
        return min(level_kernels.LANES, 1 << (longest - 1).bit_length())

    def constants(self) -> dict[str, Any]:
        """Return the constants of the kernels that read a payload."""
        together, width = digits.PACKED[self.value_bits]
        return self.sizes() | {"TOGETHER": together, "WIDTH": width, "RADIX": self.radix}

    def sizes(self) -> dict[str, Any]:
        """Return the constants of all kernels."""
        from aftermath.kernels import triton_sparse, triton_topk

        return {
            "COLUMNS": triton_sparse.COLUMNS,
            "LANES": self.lanes,
            "EXPONENTS": MOST - LEAST + 1 if self.has_exponents else 0,
            "SIZES": self.value_bits == 2,
            **triton_topk.EXACT,
        }

    @property
    def radix(self) -> int:
        """Return the number of different digits."""
        return 1 + (1 << self.value_bits)


def usable(device: torch.device, values: Values) -> bool:
    """Return whether results with these values stay packed on the device."""
    return values.bits > 0 and triton_gate.works_on(device) and _proven(device, values)


@lru_cache(maxsize=8)
def _proven(device: torch.device, values: Values) -> bool:
    from aftermath.optim.sparse_proof import alike

    return triton_gate.proven(
        device, lambda place: alike(place, values), "count sparse results differently from torch"
    )


def checked(
    data: bytes | bytearray | memoryview,
    results: ResultFormat,
    level: int,
    unpack: Unpack,
    device: torch.device,
) -> PackedEntries | None:
    """Return the votes in a payload of the right size, on the device. None if it is not valid."""
    from aftermath.kernels import triton_sparse

    of = sparse_level(results, level, device)
    if not _ends_with_zeros(data, of):
        return None
    payload = uploaded(data, device)
    wrong = torch.empty(of.layout.blocks, dtype=torch.uint8, device=device)
    with level_kernels.on_device(device):
        triton_sparse.check_sparse[(of.layout.blocks,)](
            payload, of.lines, of.part_of, wrong, **of.starts, **of.constants()
        )
    if bool(wrong.any()):
        return None
    return PackedEntries(level, payload, _kind(results), unpack)


def votes_on(
    results: Mapping[int, Sequence[Votes]], device: torch.device
) -> dict[int, list[PackedEntries]] | None:
    """Return the votes of all levels if every vote is packed on the device, else None."""
    votes_by_level: dict[int, list[PackedEntries]] = {}
    for level, votes in results.items():
        votes_by_level[level] = [
            vote
            for vote in votes
            if isinstance(vote, PackedEntries) and vote.payload.device == device
        ]
        if len(votes_by_level[level]) < len(votes):
            return None
    return votes_by_level


def count(
    votes: Sequence[PackedEntries],
    table: level_kernels.LevelTensors,
    results: ResultFormat,
    most: int,
    divisors: Sequence[float],
    rate: float,
) -> None:
    """Subtract the mean of all votes from the table's tensors, or store the mean there.

    `most`, `divisors` and `rate` are those of `dense_votes.means`.
    """
    from aftermath.kernels import triton_sparse

    device = table.device
    of = sparse_level(results, votes[0].level, device)
    by = torch.tensor([*divisors, rate], dtype=torch.float64).to(device)
    for group, numbers, sums in group_sums(votes, of, most):
        block = of.layout.groups[group].block
        with level_kernels.on_device(device):
            triton_sparse.mean_of_sums[(len(numbers), -(-block // level_kernels.LANES))](
                *(table.lines, table.part_of, numbers, sums, len(votes), by),
                **level_kernels.how(),
            )


def sign_means(
    votes: Sequence[PackedEntries], of: SparseLevel, mean_bits: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of a group, and means of its sign votes, float64 [blocks, h, w].

    Means are those of `optim.exact_signs`. A large group comes in several pieces, in order.
    """
    from aftermath.kernels import triton_sparse, triton_topk

    for number, _, sums in group_sums(votes, of, most=1):
        group = of.layout.groups[number]
        means = torch.empty(sums.shape, dtype=torch.float64, device=sums.device)
        with level_kernels.on_device(sums.device):
            triton_sparse.means_of_sums[(-(-sums.numel() // level_kernels.LANES),)](
                *(sums, means, sums.numel()),
                MEAN_BITS=mean_bits,
                LANES=level_kernels.LANES,
                **triton_topk.EXACT,
            )
        yield number, means.view(-1, group.height, group.width)


def group_sums(
    votes: Sequence[PackedEntries], of: SparseLevel, most: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield a group's number, canonical numbers of some blocks, and these blocks' sums of votes.

    The sums are int64 [blocks, size] with counts (`kernels.triton_sparse.COUNT_BITS`). The next
    piece overwrites them.
    """
    from aftermath.kernels import triton_sparse

    device = votes[0].payload.device
    addresses = torch.tensor([vote.payload.data_ptr() for vote in votes]).to(device)
    for number, (group, blocks) in enumerate(zip(of.layout.groups, of.numbers, strict=True)):
        for some in blocks.split(max(1, _SUMS_AT_ONCE // group.block)):
            sums = torch.zeros(len(some), group.block, dtype=torch.int64, device=device)
            with level_kernels.on_device(device):
                triton_sparse.add_sparse[(len(some), len(votes))](
                    *(addresses, of.lines, of.part_of, some, sums, most),
                    **of.starts,
                    **of.constants(),
                )
            yield number, some, sums


def encoded(results: ResultFormat, level: int, chosen: Sequence[tuple[Tensor, Tensor]]) -> bytes:
    """Return a level's payload from indices int64 and fp32 values, [blocks, topk] per group.

    The values must be on the format's lattice.
    """
    from aftermath.kernels import triton_sparse

    device = chosen[0][0].device
    of = sparse_level(results, level, device)
    digits_at = of.starts["digits_at"]
    bits = torch.zeros(8 * digits_at, dtype=torch.uint8, device=device)
    codes = torch.zeros(max(1, of.digit_count), dtype=torch.uint8, device=device)
    starts = {name: start for name, start in of.starts.items() if name != "digits_at"}
    for (indices, values), group, numbers in zip(chosen, of.layout.groups, of.numbers, strict=True):
        with level_kernels.on_device(device):
            triton_sparse.write_sparse[(group.blocks, -(-group.topk // of.lanes))](
                *(indices.contiguous(), values.contiguous(), of.lines, of.part_of, numbers),
                *(bits, codes),
                **starts,
                **of.sizes(),
                LEAST=LEAST,
            )
    payload = torch.empty(results.payload_bytes(level), dtype=torch.uint8, device=device)
    payload[:digits_at] = pack_bits(bits)
    if of.digit_count:
        pack_codes(codes, payload[digits_at:], of.digit_count, of.value_bits)
    return downloaded(payload)


@lru_cache(maxsize=64)
def sparse_level(results: ResultFormat, level: int, device: torch.device) -> SparseLevel:
    """Return the tables of a level on a device."""
    layout = level_layout(results, level)
    lines = []
    canonical = [torch.empty(group.blocks, dtype=torch.int64) for group in layout.groups]
    block = index_bit = entry = digit = 0
    for part in layout.parts:
        group = layout.groups[part.group]
        blocks = part.blocks.count
        low = -1 if group.digits else low_bits_of(group.block, group.topk)
        width = 0 if group.digits else bits_of(group.block, group.topk)
        lines.append([group.block, group.topk, low, width, block, index_bit, entry, digit])
        canonical[part.group][part.first : part.first + blocks] = torch.arange(blocks) + block
        block += blocks
        index_bit += blocks * width
        if group.digits:
            digit += blocks * group.block
        else:
            entry += blocks * group.topk
    counts = level_kernels.part_numbers(layout, device)
    return SparseLevel(
        layout,
        results.values.bits,
        results.values.lattice_bits > 0,
        torch.tensor(lines, dtype=torch.int64).to(device),
        counts,
        tuple(numbers.to(device) for numbers in canonical),
        *_strings(results, index_bit, entry, block),
        digit_count=digit,
    )


def _strings(
    results: ResultFormat, index_bits: int, entries: int, blocks: int
) -> tuple[dict[str, int], tuple[tuple[int, int], ...]]:
    """Return the bytes where strings begin, and the last byte and used bits of each string."""
    lengths = {
        "indices": index_bits,
        "exponents_at": EXPONENT_BITS * blocks if results.values.lattice_bits else 0,
        "signs_at": entries,
        "sizes_at": entries if results.values.bits == 2 else 0,
    }
    starts = {}
    ends = []
    start = 0
    for name, bits in lengths.items():
        starts[name] = start
        start += whole_bytes(bits)
        if bits % 8:
            ends.append((start - 1, bits % 8))
    del starts["indices"]
    return starts | {"digits_at": start}, tuple(ends)


def _ends_with_zeros(data: bytes | bytearray | memoryview, of: SparseLevel) -> bool:
    """Return whether only zeros follow the last bit of each string, and the last digit."""
    if any(data[last] >> used for last, used in of.ends):
        return False
    at = of.starts["digits_at"]
    return not of.digit_count or digits.ends_with_zeros(
        memoryview(data)[at:], of.digit_count, of.value_bits
    )


def _longest_string(group: Group) -> int:
    """Return the number of a block's digits, or of the bits of its bitmap."""
    if group.digits:
        return group.block
    low_bits = group.topk * low_bits_of(group.block, group.topk)
    return bits_of(group.block, group.topk) - low_bits


def _kind(results: ResultFormat) -> torch.dtype:
    return torch.int64 if results.values.lattice_bits else torch.int8
