"""Payloads that keep few numbers per block, encoded and decoded on a GPU as in `optim.codec`.

A lane handles a block: its rank, signs and sizes. `optim.codec` explains refusals. The CPU handles
places that are not ranks, and floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from aftermath.model.levels import Segment
from aftermath.optim import digits, flat, on_gpu, places, ranks
from aftermath.optim.blocks import UNUSED, Blocks
from aftermath.optim.format import EXPONENT_BITS, ResultFormat, Transform, Values, whole_bytes
from aftermath.optim.lattice import LEAST, MOST, is_half_more, quantise
from aftermath.optim.layout import level_layout
from aftermath.optim.packed import downloaded, packed_digits, uploaded
from aftermath.optim.transform import strongest
from aftermath.optim.votes import Votes

_STEPS = 17  # halvings to find one of 2^16 places, plus one
_LANES = 32  # blocks per program: a warp, whose lanes wait for memory, not for each other

_PROOF: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
    ((90, 64), (64, 64), 40),
    ((35, 20), (7, 10), 7),
    ((50,), (20,), 20),
    ((128, 64), (64, 64), 40),
    ((9,), (9,), 2),
)
"""Shapes, edges and top-k: blocks beyond the ends of tensors, digits, two tensors in a group, one
block.
"""


def usable(device: torch.device, results: ResultFormat, level: int) -> bool:
    """Return whether a device encodes and decodes such payloads of a level."""
    return on_gpu.works_on(device) and _has_ranks(results, level) and _alike(device, results.values)


@dataclass(frozen=True)
class _Plan:
    """A kernel's arguments for a level. Tensors are on the device."""

    rows: tuple[tuple[int, ...], ...]
    limbs: tuple[int, ...]
    """Limbs per group in memory."""
    group_of: Tensor
    at: tuple[Tensor, Tensor, Tensor, Tensor]
    """Per block, group by group: bit of its places, first entry, first entry without digits,
    number.
    """
    exponents_at: int
    signs_at: int
    sizes_at: int
    digits_at: int
    """Bit offset of places and values; byte offset of digits."""
    ends: tuple[tuple[int, int], ...]
    """Padding bits, which must be zero: from, to."""
    digit_count: int
    tables: tuple[Tensor, ...]
    """Tables that the rows point into, kept alive here."""

    def launch(self, kernel: Any, rows: Sequence[Sequence[int]], *given: Any, **constants: Any) -> None:
        """Call a kernel for all blocks."""
        from aftermath.kernels import gpu, gpu_ranks

        device = self.group_of.device
        groups = torch.tensor(rows, dtype=torch.int64).to(device)
        with flat.on_device(device):
            kernel[(len(self.group_of),)](
                *(given[0], groups, self.group_of, *given[1:]),
                COLUMNS=gpu_ranks.COLUMNS,
                LANES=_LANES,
                num_warps=1,
                **constants,
                **gpu.EXACT,
            )

    def with_memory(self, chosen: Sequence[tuple[Tensor, Tensor]] | None = None) -> tuple[list[list[int]], Tensor]:
        """Return the rows with addresses of zeroed limbs and of `chosen`, and the limbs' memory."""
        memory = torch.zeros(sum(self.limbs) + 1, dtype=torch.int64, device=self.group_of.device)
        rows = []
        start = 0
        for number, (row, size) in enumerate(zip(self.rows, self.limbs, strict=True)):
            indices, values = (0, 0) if chosen is None else (own.data_ptr() for own in chosen[number])
            rows.append([*row[:7], memory.data_ptr() + 8 * start, indices, values, *row[7:]])
            start += size
        return rows, memory


def decoded(
    data: bytes | bytearray | memoryview, results: ResultFormat, level: int, device: torch.device
) -> Votes | None:
    """Return the votes in a payload of the right size, on the device. None if it is not valid."""
    from aftermath.kernels import gpu_ranks

    layout = level_layout(results, level)
    plan = _plan(results, level, device)
    if not _zeros(data, plan, results.values):
        return None
    payload = uploaded(data, device)
    positions = torch.full((layout.entries,), -1, dtype=torch.int64, device=device)
    values = torch.empty(layout.entries, dtype=torch.int8, device=device)
    shifts = torch.empty(layout.entries, dtype=torch.uint8, device=device)
    wrong = torch.empty(layout.blocks, dtype=torch.uint8, device=device)
    rows, memory = plan.with_memory()
    together, width = digits.PACKED[results.values.bits]
    plan.launch(
        gpu_ranks.decode,
        rows,
        *(payload, *plan.at, plan.exponents_at, plan.signs_at, plan.sizes_at, positions, values, shifts, wrong),
        STEPS=_STEPS,
        **_values(results.values),
        EXPONENTS=MOST - LEAST + 1,
        TOGETHER=together,
        WIDTH=width,
        RADIX=1 + (1 << results.values.bits),
    )
    del memory
    is_wrong, has_unused = torch.stack((wrong.amax(), (positions.amin() < 0).to(torch.uint8))).tolist()
    if is_wrong:
        return None
    if has_unused:
        used = positions >= 0
        positions, values, shifts = positions[used], values[used], shifts[used]
    return Votes(level, positions, values, shifts if results.values.lattice_bits else None)


def encoded(results: ResultFormat, level: int, chosen: Sequence[tuple[Tensor, Tensor]]) -> bytes:
    """Return a level's payload from indices int64 and values fp32 [blocks, topk] by group."""
    from aftermath.kernels import gpu_ranks

    layout = level_layout(results, level)
    own = [(indices.contiguous(), values.contiguous()) for indices, values in chosen]
    device = own[0][0].device
    size = results.payload_bytes(level)
    plan = _plan(results, level, device)
    words = torch.zeros(size // 4 + 2, dtype=torch.int32, device=device)
    rows, memory = plan.with_memory(own)
    numbers = (plan.at[0], plan.at[2], plan.at[3], plan.exponents_at, plan.signs_at, plan.sizes_at)
    plan.launch(gpu_ranks.encode, rows, words, *numbers, **_values(results.values), LEAST=LEAST)
    del memory
    payload = words.view(torch.uint8)[:size]
    if plan.digit_count:
        flat_digits = layout.canonical(
            [
                _at_places(*pair, group.block, results.values) if group.digits else pair[0].new_empty(group.blocks, 0)
                for pair, group in zip(own, layout.groups, strict=True)
            ]
        )
        payload[plan.digits_at :] = packed_digits(flat_digits.to(torch.int8), results.values.bits)
    return downloaded(payload)


def _at_places(indices: Tensor, values: Tensor, size: int, kind: Values) -> Tensor:
    """Return the digits int8 [blocks, size] of blocks that keep these numbers."""
    found = values.sign().to(torch.int8)
    if kind is Values.TWO_BIT:
        found *= 1 + 2 * is_half_more(values).to(torch.int8)
    beyond = indices.masked_fill(indices == UNUSED, size)
    return found.new_zeros(len(found), size + 1).scatter_(1, beyond, found)[:, :size]


def _values(kind: Values) -> dict[str, int]:
    return {"VALUE_BITS": kind.bits, "LATTICE": int(kind.lattice_bits > 0)}


@lru_cache(maxsize=64)
def _has_ranks(results: ResultFormat, level: int) -> bool:
    groups = level_layout(results, level).groups
    kept = [group for group in groups if not group.digits]
    return results.values.bits > 0 and all(places.are_ranks(group.block, group.topk) for group in kept)


@lru_cache(maxsize=64)
def _plan(results: ResultFormat, level: int, device: torch.device) -> _Plan:
    layout = level_layout(results, level)
    bits = results.values.bits
    together, width = digits.PACKED[bits]
    before = results.place_bytes(level)
    between = results.value_bytes(level)
    exponent_bits = EXPONENT_BITS * layout.blocks if results.values.lattice_bits else 0
    own_count = sum(part.blocks.entries for part in layout.parts if not layout.groups[part.group].digits)
    exponents_at = 8 * before
    signs_at = 8 * (before + whole_bytes(exponent_bits))
    sizes_at = signs_at + 8 * whole_bytes(own_count)
    digits_at = before + between
    firsts = [sum(group.blocks for group in layout.groups[:number]) for number in range(len(layout.groups))]
    at = [torch.zeros(layout.blocks, dtype=torch.int64) for _ in range(4)]
    bit = entry = own_entry = block = digit = 0
    for part in layout.parts:
        group = layout.groups[part.group]
        count = part.blocks.count
        start = firsts[part.group] + part.first
        steps = torch.arange(count)
        where = slice(start, start + count)
        at[1][where] = entry + group.topk * steps
        at[3][where] = block + steps
        if group.digits:
            first = digit + group.block * steps
            at[0][where] = (8 * digits_at + first // together * width) * 8 + first % together
            digit += count * group.block
        else:
            size = ranks.bits_of(group.block, group.topk)
            at[0][where] = bit + size * steps
            at[2][where] = own_entry + group.topk * steps
            bit, own_entry = bit + count * size, own_entry + count * group.topk
        entry, block = entry + count * group.topk, block + count
    rows: list[tuple[int, ...]] = []
    limbs: list[int] = []
    group_of: list[int] = []
    tables: list[Tensor] = []
    for number, group in enumerate(layout.groups):
        size = 0
        weights = torch.empty(0)
        short = torch.empty(0)
        if not group.digits:
            size = ranks.bits_of(group.block, group.topk)
            weights, short = _tables(group.block, group.topk, device)
        tables += [weights, short]
        programs = -(-group.blocks // _LANES)
        beginning = firsts[number] << 32 | len(group_of)
        addresses = (weights.data_ptr(), short.data_ptr())
        rows.append((group.blocks, group.block, group.topk, len(short), size, *addresses, group.base, beginning))
        limbs.append((-(-size // 32) + 5) * group.blocks if size else 0)
        group_of += [number] * programs
    ends = [(bit, 8 * before), (exponents_at + exponent_bits, signs_at)]
    plane = 8 * whole_bytes(own_count)
    ends += [(signs_at + number * plane + own_count, signs_at + (number + 1) * plane) for number in range(bits)]
    return _Plan(
        tuple(rows),
        tuple(limbs),
        torch.tensor(group_of, dtype=torch.int32).to(device),
        tuple(own.to(device) for own in at),  # type: ignore[arg-type]
        exponents_at,
        signs_at,
        sizes_at,
        digits_at,
        tuple(ends),
        digit,
        tuple(tables),
    )


@lru_cache(maxsize=16)
def _tables(size: int, most: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the weights of sets, and those of few members as plain integers."""
    found = ranks.weights(size, most)
    return torch.tensor(found[0]).to(device), torch.tensor(found[1]).to(device)


def _zeros(data: bytes | bytearray | memoryview, plan: _Plan, kind: Values) -> bool:
    """Return whether the padding bits are zero."""
    for start, end in plan.ends:
        if start < end and int.from_bytes(data[start // 8 : end // 8], "little") >> start % 8:
            return False
    if not plan.digit_count:
        return True
    together, width = digits.PACKED[kind.bits]
    last = (plan.digit_count - 1) // together
    rest = int.from_bytes(data[plan.digits_at + last * width // 8 :], "little") >> last * width % 8
    numbers: int = (1 + (1 << kind.bits)) ** (plan.digit_count - last * together)
    return rest < numbers


@lru_cache(maxsize=8)
def _alike(device: torch.device, kind: Values) -> bool:
    return on_gpu.proven(device, lambda own: _payloads_alike(own, kind), "read payloads otherwise than the CPU")


def _payloads_alike(device: torch.device, kind: Values) -> bool:
    """Compare payloads and votes with the CPU's, and check that both refuse the same bytes."""
    from aftermath.optim.codec import decode_level, encode_level
    from aftermath.optim.feedback import entries_of

    blocks = tuple(
        Blocks(Segment(f"proof{number}", 0, None, 0, 0, shape), edges, topk)
        for number, (shape, edges, topk) in enumerate(_PROOF)
    )
    results = ResultFormat(blocks, 1, Transform.NONE, kind)
    layout = level_layout(results, 0)
    draws = torch.Generator().manual_seed(4)
    chosen = []
    for group in layout.groups:
        numbers = torch.randn(group.blocks, group.block, generator=draws)
        numbers[0] = 0
        numbers[1:2, 3:] = 0
        indices, values = strongest(numbers, group.topk)
        chosen.append((indices, quantise(values, kind.lattice_bits) if kind.lattice_bits else values))
    expected = encode_level(results, 0, *entries_of(layout, *zip(*chosen, strict=True)))
    payload = encoded(results, 0, [(indices.to(device), values.to(device)) for indices, values in chosen])
    votes = decode_level(expected, results, 0)
    found = decoded(expected, results, 0, device)
    if payload != expected or found is None or not torch.equal(found.positions.cpu(), votes.positions):
        return False
    spoilt = [bytes([expected[0] ^ 1]) + expected[1:], b"\xff" * 40 + expected[40:], expected[:-1] + b"\xff"]
    refused = all((decoded(bad, results, 0, device) is None) == _is_refused(bad, results) for bad in spoilt)
    return refused and torch.equal(found.multiples().cpu(), votes.multiples())


def _is_refused(data: bytes, results: ResultFormat) -> bool:
    from aftermath.optim.codec import BadPayload, decode_level

    try:
        decode_level(data, results, 0)
    except BadPayload:
        return True
    return False
