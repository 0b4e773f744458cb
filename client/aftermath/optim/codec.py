"""The bytes of one level of a result, and the votes in them.

All numbers are little-endian, and every size follows from the result format. A payload holds, for
all blocks in canonical order (segments, then blocks row-major): index codes, exponents, signs,
sizes, digits. Each of these strings ends with zeros up to a whole byte. Votes have exactly one
encoding, and decoding raises BadPayload for any other bytes.
"""

# A block has `topk` entries for its indices in ascending order; unused entries come last.
# - Index codes: see `optim.index_coding`.
# - Exponents, on the lattice only: six bits per block. 0 means no votes, 1 the least exponent.
# - Signs: a bit per entry, 1 for a negative vote.
# - Sizes, with 2 bits only: a bit per entry, 1 for three times the power of two.
# - Float formats have an fp32 per entry instead of signs and sizes.
# - Digits: blocks that are shorter as digits (`ResultFormat.as_digits`) have no index code, sign or
#   size. Their digits (`optim.digits`) come last.
# A coefficient of zero is not a vote, so a float vote is a normal number. Values of unused entries
# are zero.

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.optim import compiled_sparse, digits, packed_dense, packed_sparse, triton_gate
from aftermath.optim.bitstrings import pack_bits, unpack_bits
from aftermath.optim.blocks import UNUSED
from aftermath.optim.index_coding import compact, decode_indices, encode_indices
from aftermath.optim.index_sizes import bits_of
from aftermath.optim.lattice import LEAST, MOST, digits_of
from aftermath.optim.layout import LevelLayout, level_layout
from aftermath.optim.level_votes import DenseVotes, Votes
from aftermath.optim.result_format import EXPONENT_BITS, ResultFormat, Values, whole_bytes

_MAGNITUDE = 0x7FFFFFFF  # mask of the bits of an fp32 without its sign
_SMALLEST = 0x00800000  # bits of the smallest normal fp32
_INFINITY = 0x7F800000  # bits of an infinite fp32


class BadPayload(AftermathError):
    """A peer's result is not a valid encoding in this run's result format."""


# --- encoding


def encode_level(
    results: ResultFormat, level: int, indices: NDArray[np.uint16], values: NDArray[np.float32]
) -> bytes:
    """Encode a level from one index and one value per entry.

    Both arrays have shape [results.entries(level)], in canonical order. Raises ValueError for
    values that are not on the format's lattice.
    """
    layout = level_layout(results, level)
    widths = [group.topk for group in layout.groups]
    index_rows = layout.grouped(torch.from_numpy(indices.astype(np.int32)), widths)
    value_rows = layout.grouped(torch.from_numpy(values.astype(np.float32)), widths)
    return encode_groups(results, level, list(zip(index_rows, value_rows, strict=True)))


def encode_groups(
    results: ResultFormat, level: int, chosen: Sequence[tuple[Tensor, Tensor]]
) -> bytes:
    """Encode a level from indices and fp32 values, [blocks, topk] per group, on any device.

    Only the payload leaves the device. Raises ValueError for values that are not on the format's
    lattice.
    """
    if results.is_dense(level):
        return _encode_whole(results, level, chosen)
    if packed_sparse.usable(chosen[0][0].device, results.values):
        return packed_sparse.encoded(results, level, chosen)
    return encode_entries(results, level, chosen)


def encode_entries(
    results: ResultFormat, level: int, chosen: Sequence[tuple[Tensor, Tensor]]
) -> bytes:
    """Encode a level with torch, group by group: see `encode_groups`."""
    layout = level_layout(results, level)
    groups = layout.groups
    codes = [
        rows.new_empty(group.blocks, 0, dtype=torch.uint8)
        if group.digits
        else encode_indices(rows, group.block)
        for group, (rows, _) in zip(groups, chosen, strict=True)
    ]
    strings = [pack_bits(layout.canonical(codes))]
    values = [torch.where(rows != UNUSED, group_values, 0.0) for rows, group_values in chosen]
    if results.values is Values.FLOAT:
        strings.append(layout.canonical(values).view(torch.uint8))
        return packed_dense.downloaded(torch.cat(strings))
    if results.values.lattice_bits:
        votes, exponents = _lattice_votes(values, results.values.lattice_bits, layout)
        strings.append(exponents)
    else:
        votes = [group_values.sign().to(torch.int8) for group_values in values]
    apart = [
        group_votes[:, : 0 if group.digits else group.topk]
        for group, group_votes in zip(groups, votes, strict=True)
    ]
    strings.append(
        pack_bits(layout.canonical([group_votes < 0 for group_votes in apart]).to(torch.uint8))
    )
    if results.values is Values.TWO_BIT:
        strings.append(
            pack_bits(
                layout.canonical([group_votes.abs() == 3 for group_votes in apart]).to(torch.uint8)
            )
        )
    if any(group.digits for group in groups):
        rows = [
            _at_indices(indices, group_votes, group.block) if group.digits else group_votes[:, :0]
            for group, (indices, _), group_votes in zip(groups, chosen, votes, strict=True)
        ]
        strings.append(packed_dense.packed_digits(layout.canonical(rows), results.values.bits))
    return packed_dense.downloaded(torch.cat(strings))


def _encode_whole(
    results: ResultFormat, level: int, chosen: Sequence[tuple[Tensor, Tensor]]
) -> bytes:
    """Encode a level whose blocks keep every number (`results.is_dense`)."""
    layout = level_layout(results, level)
    device = chosen[0][0].device
    bits = results.values.bits
    if packed_dense.usable(device, bits):
        return packed_dense.encoded(layout, chosen, bits)
    votes, exponents = _lattice_votes([values for _, values in chosen], bits, layout)
    rows = [
        _at_indices(indices, group_votes, group_votes.shape[1])
        if bool((indices == UNUSED).any())
        else group_votes
        for (indices, _), group_votes in zip(chosen, votes, strict=True)
    ]
    if device.type == "cpu":
        return exponents.numpy().tobytes() + digits.to_bytes(layout.canonical(rows).numpy(), bits)
    return packed_dense.downloaded(
        torch.cat([exponents, packed_dense.packed_digits(layout.canonical(rows), bits)])
    )


def _lattice_votes(
    values: Sequence[Tensor], bits: int, layout: LevelLayout
) -> tuple[list[Tensor], Tensor]:
    """Return votes int8 [blocks, topk] per group, and all blocks' exponents, uint8 [bytes]."""
    votes = []
    codes = []
    for group_values in values:
        multiples, exponent = digits_of(group_values.contiguous(), bits)
        votes.append(multiples)
        codes.append(torch.where(multiples[:, :1] != 0, exponent - LEAST + 1, 0).to(torch.uint8))
    return votes, packed_dense.packed_exponents(layout.canonical(codes))


def _at_indices(indices: Tensor, votes: Tensor, size: int) -> Tensor:
    """Return votes by index, [blocks, size], from votes by entry, [blocks, topk]."""
    beyond = torch.where(indices == UNUSED, size, indices).long()
    return votes.new_zeros(len(votes), size + 1).scatter_(1, beyond, votes)[:, :size]


# --- decoding


def decode_level(
    data: bytes | bytearray | memoryview,
    results: ResultFormat,
    level: int,
    device: torch.device | None = None,
) -> Votes:
    """Decode a peer's payload of one level.

    Raises BadPayload with the first fault, or SchemaError if the level does not exist. If `device`
    is a GPU, votes that are not floats are checked there and stay there, packed. On the CPU, dense
    votes stay packed, if compiled kernels work.
    """
    size = results.payload_bytes(level)
    if len(data) != size:
        raise BadPayload(f"a result of level {level} must have {size} bytes, not {len(data)}")
    gpu = device if device is not None and triton_gate.works_on(device) else None
    if (packed_votes := _packed(gpu, data, results, level)) is not None:
        return packed_votes
    return decode_on_cpu(data, results, level)


def _packed(
    gpu: torch.device | None,
    data: bytes | bytearray | memoryview,
    results: ResultFormat,
    level: int,
) -> Votes | None:
    """Check a payload of the right size, and return its votes still packed.

    Return None if neither the GPU nor a compiled kernel can, or if the payload is not valid.
    """
    bits = results.values.bits
    unpack = partial(decode_on_cpu, results=results, level=level)
    if not results.is_dense(level):
        if gpu is not None and packed_sparse.usable(gpu, results.values):
            return packed_sparse.checked(data, results, level, unpack, gpu)
        return None
    layout = level_layout(results, level)
    if gpu is not None and packed_dense.usable(gpu, bits):
        return packed_dense.checked(data, level, layout, bits, unpack, gpu)
    if compiled_sparse.works():
        return packed_dense.checked_on_cpu(data, level, layout, bits, unpack)
    return None


def decode_on_cpu(data: bytes | bytearray | memoryview, results: ResultFormat, level: int) -> Votes:
    """Decode a payload of the right size. Raises BadPayload with the first fault."""
    layout = level_layout(results, level)
    if results.is_dense(level):
        between = results.value_bytes(level)
        octets = np.frombuffer(data, np.uint8)
        return _dense(octets[:between], octets[between:], results, layout, level)
    return _Decoding(
        packed_dense.uploaded(data, torch.device("cpu")), results, layout, level
    ).votes()


def _dense(
    exponents: NDArray[np.uint8],
    written: NDArray[np.uint8],
    results: ResultFormat,
    layout: LevelLayout,
    level: int,
) -> DenseVotes:
    """Return the votes of a dense result, which has an exponent per block and a digit per value."""
    numbers, wrong = digits.from_bytes(written, layout.numbers, results.values.bits)
    if wrong is not None:
        raise BadPayload(f"level {level}: the code of digit {wrong} is not valid")
    rows = layout.grouped(torch.from_numpy(numbers), [group.block for group in layout.groups])
    voted = [(group_rows != 0).any(1, keepdim=True) for group_rows in rows]
    checks = _Checks()
    shifts = _shifts(torch.from_numpy(exponents.copy()), voted, layout, level, checks)
    checks.raise_first()
    return DenseVotes(level, rows, shifts, layout)


class _Checks:
    """Collects checks of a payload, whose first failure is raised."""

    def __init__(self) -> None:
        self._checks: list[tuple[Tensor, Callable[[], str]]] = []

    def refuse(self, wrong: Tensor, sentence: Callable[[], str]) -> None:
        """Add a check that fails if any element of `wrong` is true. `sentence` is its message."""
        self._checks.append((wrong, sentence))

    def raise_first(self) -> None:
        """Raise BadPayload with the message of the first check that fails."""
        for failed, (_, sentence) in zip(
            torch.stack([wrong.any() for wrong, _ in self._checks]).tolist(),
            self._checks,
            strict=True,
        ):
            if failed:
                raise BadPayload(sentence())


class _Decoding:
    """Decodes one payload of the right size, uint8, on the CPU."""

    def __init__(
        self, payload: Tensor, results: ResultFormat, layout: LevelLayout, level: int
    ) -> None:
        self._payload = payload
        self._results = results
        self._layout = layout
        self._level = level
        self._checks = _Checks()

    def votes(self) -> Votes:
        """Return the votes. Raises BadPayload."""
        results = self._results
        layout = self._layout
        values_at = results.index_bytes(self._level)
        digits_at = values_at + results.value_bytes(self._level)
        index_rows = self._indices(self._payload[:values_at])
        digit_rows = self._digits(self._payload[digits_at:])
        votes = []
        for number, (group, group_rows) in enumerate(zip(layout.groups, digit_rows, strict=True)):
            voted = group_rows != 0
            if group.digits:
                places = torch.arange(
                    group.block, dtype=torch.int32, device=group_rows.device
                ).expand(len(group_rows), -1)
                members = voted.sum(1, keepdim=True, dtype=torch.int32)
                entries = torch.arange(group.topk, dtype=torch.int32, device=group_rows.device)
                used = entries < members
                index_rows[number] = torch.where(used, compact(places, voted, group.topk), UNUSED)
                self._refuse_rows(number, members[:, 0] > group.topk)
            votes.append(
                compact(group_rows, voted, group.topk) if group.digits else group_rows.new_empty(0)
            )
        used_rows = [rows != UNUSED for rows in index_rows]
        used = layout.canonical(used_rows)
        rest = self._payload[values_at:digits_at]
        shifts = None
        if results.values is Values.FLOAT:
            group_values = self._floats(rest, used)
        else:
            if results.values.lattice_bits:
                count = whole_bytes(EXPONENT_BITS * layout.blocks)
                has_votes = [rows[:, :1] for rows in used_rows]
                per_block = _shifts(rest[:count], has_votes, layout, self._level, self._checks)
                wide = [
                    block_shifts.expand(-1, group.topk)
                    for block_shifts, group in zip(per_block, layout.groups, strict=True)
                ]
                shifts = layout.canonical(wide)
                rest = rest[count:]
            apart = self._signs(rest, used_rows)
            group_values = layout.canonical(
                [
                    group_rows if group.digits else read
                    for group, group_rows, read in zip(layout.groups, votes, apart, strict=True)
                ]
            )
        self._checks.raise_first()
        positions = layout.canonical(
            [
                rows + _bases(group.base, group.block, group.blocks, rows.device)
                for group, rows in zip(layout.groups, index_rows, strict=True)
            ]
        )
        return Votes(
            self._level,
            positions[used],
            group_values[used],
            None if shifts is None else shifts[used],
        )

    def _indices(self, octets: Tensor) -> list[Tensor]:
        """Return indices int32 [blocks, topk] per group, [blocks, 0] for blocks of digits."""
        layout = self._layout
        widths = [
            0 if group.digits else bits_of(group.block, group.topk) for group in layout.groups
        ]
        rows = layout.grouped(self._string(octets, self._canonical_size(widths), "index"), widths)
        indices_by_group = []
        for number, (group, codes) in enumerate(zip(layout.groups, rows, strict=True)):
            if group.digits:
                indices_by_group.append(codes.new_empty(group.blocks, 0, dtype=torch.int32))
                continue
            indices, wrong = decode_indices(codes, group.block, group.topk)
            self._refuse_rows(number, wrong)
            indices_by_group.append(indices)
        return indices_by_group

    def _digits(self, octets: Tensor) -> list[Tensor]:
        """Return digits int8 [blocks, block] per group, [blocks, 0] for blocks with index codes."""
        layout = self._layout
        widths = [group.block if group.digits else 0 for group in layout.groups]
        count = self._canonical_size(widths)
        if not count:
            return layout.grouped(torch.empty(0, dtype=torch.int8, device=octets.device), widths)
        bits = self._results.values.bits
        codes, first = digits.from_bytes(octets.numpy(), count, bits)
        numbers = torch.from_numpy(codes)
        self._checks.refuse(torch.tensor(first is not None), lambda: self._invalid_digit(first))
        return layout.grouped(numbers, widths)

    def _invalid_digit(self, number: int | None) -> str:
        return f"level {self._level}: the code of digit {number} is not valid"

    def _signs(self, octets: Tensor, used: Sequence[Tensor]) -> list[Tensor]:
        """Return votes int8 [blocks, topk] per group, [blocks, 0] for blocks of digits."""
        bits = self._results.values.bits
        plane = len(octets) // bits
        votes = [
            1 - 2 * bits_set.to(torch.int8)
            for bits_set in self._plane(octets[:plane], used, "sign")
        ]
        if bits == 1:
            return votes
        sizes = self._plane(octets[plane:], used, "size")
        return [
            vote * (1 + 2 * size.to(torch.int8)) for vote, size in zip(votes, sizes, strict=True)
        ]

    def _plane(self, octets: Tensor, used: Sequence[Tensor], what: str) -> list[Tensor]:
        """Return one bit per entry, uint8 [blocks, topk] per group.

        Blocks of digits have [blocks, 0].
        """
        layout = self._layout
        widths = [0 if group.digits else group.topk for group in layout.groups]
        rows = layout.grouped(self._string(octets, self._canonical_size(widths), what), widths)
        stray = [
            (group_rows != 0) & ~voted if not group.digits else torch.zeros_like(voted)
            for group, group_rows, voted in zip(layout.groups, rows, used, strict=True)
        ]
        flags = layout.canonical(stray)
        self._checks.refuse(
            flags, lambda: f"{self._entry(_first(flags))}: the {what} of an unused entry is set"
        )
        return rows

    def _floats(self, octets: Tensor, used: Tensor) -> Tensor:
        """Return the fp32 values of all entries in canonical order."""
        values = octets.clone().view(torch.float32)
        bits = values.view(torch.int32)
        magnitude = bits & _MAGNITUDE
        wrong = torch.where(used, (magnitude < _SMALLEST) | (magnitude >= _INFINITY), bits != 0)

        def sentence() -> str:
            entry = _first(wrong)
            fault = (
                "the value is zero, too small or not finite"
                if used[entry]
                else "an unused entry has a value"
            )
            return f"{self._entry(entry)}: {fault}"

        self._checks.refuse(wrong, sentence)
        return values

    def _string(self, octets: Tensor, count: int, what: str) -> Tensor:
        """Return the `count` bits of a string; the bits after them must be zeros."""
        bits = unpack_bits(octets)
        self._checks.refuse(
            bits[count:] != 0, lambda: f"level {self._level}: a bit after the last {what} is set"
        )
        return bits[:count]

    def _canonical_size(self, widths: Sequence[int]) -> int:
        return sum(
            group.blocks * width for group, width in zip(self._layout.groups, widths, strict=True)
        )

    def _refuse_rows(self, group: int, wrong: Tensor) -> None:
        group_layout = self._layout.groups[group]

        def sentence() -> str:
            segment, block = self._layout.block_of(group, _first(wrong))
            limits = (
                f"the indices are not a set of at most {group_layout.topk} of {group_layout.block}"
            )
            return f"level {self._level}, {segment.name}, block {block}: {limits}"

        self._checks.refuse(wrong, sentence)

    def _entry(self, entry: int) -> str:
        return f"level {self._level}, {self._layout.segment_of(entry).name}, entry {entry}"


def _shifts(
    octets: Tensor, voted: Sequence[Tensor], layout: LevelLayout, level: int, checks: _Checks
) -> list[Tensor]:
    """Return the left shift of each block's votes, uint8 [blocks, 1] per group.

    `voted` marks the blocks that have votes, bool [blocks, 1] per group.
    """
    bits = unpack_bits(octets)
    count = EXPONENT_BITS * layout.blocks
    checks.refuse(bits[count:] != 0, lambda: f"level {level}: a bit after the last exponent is set")
    rows = bits[:count].view(-1, EXPONENT_BITS)
    codes = rows[:, 0].clone()
    for place in range(1, EXPONENT_BITS):
        codes |= rows[:, place] << place
    has_votes = layout.canonical(voted)
    wrong = torch.where(has_votes, (codes < 1) | (codes > MOST - LEAST + 1), codes != 0)

    def sentence() -> str:
        block = _first(wrong)
        fault = (
            f"the exponent must be from {LEAST} to {MOST}"
            if has_votes[block]
            else "a block without votes has an exponent"
        )
        for part in layout.parts:
            if block < part.blocks.count:
                break
            block -= part.blocks.count
        return f"level {level}, {part.segment.name}, block {block}: {fault}"

    checks.refuse(wrong, sentence)
    shifts = torch.where(has_votes, codes - 1, 0).to(torch.uint8)
    return layout.grouped(shifts, [1] * len(layout.groups))


def _bases(base: int, size: int, blocks: int, device: torch.device) -> Tensor:
    """Return the positions of the first coefficients of a group's blocks, int64 [blocks, 1]."""
    return (base + size * torch.arange(blocks, dtype=torch.int64, device=device))[:, None]


def _first(flags: Tensor) -> int:
    """Return the first true element."""
    return int(flags.to(torch.uint8).argmax())
