"""Encode, check and count dense results (`optim.result_format`) without unpacking them.

Triton kernels do this on a GPU, and `optim.compiled_dense` on the CPU. The bytes are those of
`optim.codec`. If a check fails, `optim.codec` decodes the payload again to name the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from aftermath.kernels.runtime import run_parallel
from aftermath.optim import compiled_dense, digits, level_kernels, triton_gate
from aftermath.optim.bitstrings import pack_bits
from aftermath.optim.dense_votes import means
from aftermath.optim.lattice import LEAST, MOST, SMALLEST
from aftermath.optim.layout import LevelLayout
from aftermath.optim.level_votes import DenseVotes, Votes
from aftermath.optim.result_format import EXPONENT_BITS, whole_bytes
from aftermath.optim.transform import cells, strongest

_AT_ONCE = 2 << 20  # bytes per copying thread
Unpack = Callable[[bytes], Votes]
"""Returns the votes of a valid payload on the CPU."""


class PackedVotes(DenseVotes):
    """Dense votes on a level, stored as a payload on a device."""

    payload: Tensor
    """Bytes, uint8 [bytes]."""

    def __init__(self, level: int, payload: Tensor, layout: LevelLayout, unpack: Unpack) -> None:
        vars(self).update(level=level, payload=payload, _layout=layout, _unpack=unpack)

    @cached_property
    def _unpacked(self) -> DenseVotes:
        unpack: Unpack = vars(self)["_unpack"]
        votes = unpack(self.payload.cpu().numpy().tobytes())
        assert isinstance(votes, DenseVotes)
        return votes

    @property
    def digits(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return the digits on the CPU: see `DenseVotes`."""
        return self._unpacked.digits

    @property
    def group_shifts(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return the shifts on the CPU: see `DenseVotes`."""
        return self._unpacked.group_shifts


class HostVotes(PackedVotes):
    """Packed votes in CPU memory, which compiled kernels count. The payload is a `padded` one."""


def usable(device: torch.device, value_bits: int) -> bool:
    """Return whether results stay packed on that device."""
    return triton_gate.works_on(device) and _counting(device, value_bits)


def checked(
    data: bytes | bytearray | memoryview,
    level: int,
    layout: LevelLayout,
    value_bits: int,
    unpack: Unpack,
    device: torch.device,
) -> PackedVotes | None:
    """Return the votes in a payload of the right size, on the device. None if it is not valid."""
    from aftermath.kernels import triton_levels

    blocks = layout.blocks
    if not _ends_with_zeros(data, blocks, layout.numbers, value_bits):
        return None
    payload = uploaded(data, device)
    wrong = torch.empty(blocks, dtype=torch.uint8, device=device)
    lines, part_of = _places(layout, device)
    with level_kernels.on_device(device):
        triton_levels.check[(blocks,)](
            *(payload, lines, part_of, wrong, digits_at(blocks)),
            **level_kernels.how(**_numbers(value_bits), EXPONENTS=MOST - LEAST + 1),
        )
    return None if bool(wrong.any()) else PackedVotes(level, payload, layout, unpack)


def checked_on_cpu(
    data: bytes | bytearray | memoryview,
    level: int,
    layout: LevelLayout,
    value_bits: int,
    unpack: Unpack,
) -> HostVotes | None:
    """Return the votes in a payload of the right size, on the CPU. None if it is not valid."""
    if not _ends_with_zeros(data, layout.blocks, layout.numbers, value_bits):
        return None
    payload = compiled_dense.padded(data)
    valid = compiled_dense.check(payload, digits_at(layout.blocks), layout, value_bits)
    return HostVotes(level, payload, layout, unpack) if valid else None


def count(
    votes: Sequence[PackedVotes],
    table: level_kernels.LevelTensors,
    value_bits: int,
    most: int,
    divisors: Sequence[float],
    rate: float,
) -> None:
    """Subtract the mean of all votes from the table's tensors, or store the mean there.

    `most`, `divisors` and `rate` are those of `dense_votes.means`.
    """
    if all(isinstance(vote, HostVotes) for vote in votes):
        payloads = [vote.payload for vote in votes]
        compiled_dense.count(payloads, table, value_bits, most, divisors, rate)
        return
    from aftermath.kernels import triton_levels

    addresses = torch.tensor([vote.payload.data_ptr() for vote in votes], dtype=torch.int64).to(
        table.device
    )
    by = torch.tensor([*divisors, rate], dtype=torch.float64).to(table.device)
    with level_kernels.on_device(table.device):
        triton_levels.apply_mean[(table.blocks, table.tiles)](
            *(table.lines, table.part_of, addresses, len(votes), digits_at(table.blocks), most, by),
            **level_kernels.how(**_numbers(value_bits)),
        )


def digits_at(blocks: int) -> int:
    """Return the byte where digits begin, after the exponents of `blocks` blocks."""
    return whole_bytes(EXPONENT_BITS * blocks)


def uploaded(data: bytes | bytearray | memoryview, device: torch.device) -> Tensor:
    """Return the bytes on a device, uint8 [n]. A GPU gets them through pinned memory."""
    pinned = device.type == "cuda" and torch.cuda.is_available()
    staged = torch.empty(len(data), dtype=torch.uint8, pin_memory=pinned)
    octets = np.frombuffer(data, np.uint8)
    target = staged.numpy()
    spans = [slice(first, first + _AT_ONCE) for first in range(0, len(data), _AT_ONCE)]
    run_parallel([partial(np.copyto, target[span], octets[span]) for span in spans])
    return staged.to(device, non_blocking=True)


def downloaded(payload: Tensor) -> bytes:
    """Return the bytes of a tensor uint8 [n] on any device."""
    if payload.device.type != "cuda" or not torch.cuda.is_available():
        return payload.cpu().numpy().tobytes()
    staged = torch.empty(payload.shape, dtype=torch.uint8, pin_memory=True)
    staged.copy_(payload)
    return staged.numpy().tobytes()


def encoded(layout: LevelLayout, chosen: Sequence[tuple[Tensor, Tensor]], value_bits: int) -> bytes:
    """Return a level's payload.

    `chosen` has int64 indices and fp32 lattice values, [blocks, numbers], for each group.
    """
    from aftermath.kernels import triton_levels, triton_topk

    device = chosen[0][0].device
    codes = torch.zeros(layout.numbers, dtype=torch.uint8, device=device)
    exponents = chosen[0][0].new_empty(layout.blocks, dtype=torch.uint8)
    for (indices, values), group, (starts, numbers) in zip(
        chosen, layout.groups, _orders(layout, device), strict=True
    ):
        with level_kernels.on_device(device):
            triton_levels.write_codes[(group.blocks, -(-group.block // level_kernels.LANES))](
                *(
                    indices.contiguous(),
                    values.contiguous(),
                    starts,
                    numbers,
                    codes,
                    exponents,
                    group.block,
                ),
                LANES=level_kernels.LANES,
                LEAST=LEAST,
                **triton_topk.EXACT,
            )
    at = digits_at(layout.blocks)
    size = digits.size_of(layout.numbers, value_bits)
    payload = torch.empty(at + size, dtype=torch.uint8, device=device)
    payload[:at] = packed_exponents(exponents)
    pack_codes(codes, payload[at:], layout.numbers, value_bits)
    return downloaded(payload)


def pack_codes(codes: Tensor, octets: Tensor, count: int, value_bits: int) -> None:
    """Pack codes of digits, uint8 [count], into `octets`, uint8, like `digits.to_bytes`."""
    from aftermath.kernels import triton_sparse, triton_topk

    together, width = digits.PACKED[value_bits]
    lanes = level_kernels.LANES
    with level_kernels.on_device(codes.device):
        triton_sparse.pack_codes[(-(-len(octets) // lanes),)](
            *(codes, octets, count, len(octets)),
            LANES=lanes,
            TOGETHER=together,
            WIDTH=width,
            RADIX=1 + (1 << value_bits),
            **triton_topk.EXACT,
        )


def packed_digits(numbers: Tensor, value_bits: int) -> Tensor:
    """Encode int8 digits in canonical order on their device, like `digits.to_bytes`."""
    codes = _room(len(numbers), value_bits, numbers.device)
    codes[: len(numbers)] = numbers.abs().add_(numbers < 0)
    return _packed_codes(codes, len(numbers), value_bits)


def _room(count: int, value_bits: int, device: torch.device) -> Tensor:
    """Return zeros uint8 for the codes of `count` digits, up to whole words."""
    together = 8 * digits.PACKED[value_bits][0]
    return torch.zeros(-(-count // together) * together, dtype=torch.uint8, device=device)


def _packed_codes(codes: Tensor, count: int, value_bits: int) -> Tensor:
    """Return the bytes of `count` codes."""
    together, width = digits.PACKED[value_bits]
    size = digits.size_of(count, value_bits)
    rows = codes.view(-1, together)
    numbers = rows[:, -1].clone()
    for place in range(together - 2, -1, -1):
        numbers.mul_(1 + (1 << value_bits)).add_(rows[:, place])
    if width == 8:
        return numbers[:size]
    words = numbers.view(-1, 8)
    columns = [words[:, at] >> at | words[:, at + 1] << (7 - at) for at in range(7)]
    return torch.stack(columns, 1).flatten()[:size]


@lru_cache(maxsize=64)
def _orders(layout: LevelLayout, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return, by group, each block's first digit and its canonical number, int64 [blocks]."""
    orders = [
        tuple(torch.empty(group.blocks, dtype=torch.int64) for _ in range(2))
        for group in layout.groups
    ]
    digit = block = 0
    for part in layout.parts:
        count = part.blocks.count
        size = layout.groups[part.group].block
        blocks = torch.arange(count)
        for tensor, first, step in zip(orders[part.group], (digit, block), (size, 1), strict=True):
            tensor[part.first : part.first + count] = first + step * blocks
        digit, block = digit + count * size, block + count
    return [(starts.to(device), numbers.to(device)) for starts, numbers in orders]


def packed_exponents(codes: Tensor) -> Tensor:
    """Return the codes uint8 [blocks] as six-bit strings, uint8 [bytes], on their device."""
    bits = codes[:, None] >> torch.arange(EXPONENT_BITS, dtype=torch.uint8, device=codes.device) & 1
    return pack_bits(bits.flatten())


def _ends_with_zeros(
    data: bytes | bytearray | memoryview, blocks: int, count: int, value_bits: int
) -> bool:
    """Return whether only zeros follow the last exponent and the last digit."""
    at = digits_at(blocks)
    used = EXPONENT_BITS * blocks % 8
    if used and data[at - 1] >> used:
        return False
    return digits.ends_with_zeros(memoryview(data)[at:], count, value_bits)


def _numbers(value_bits: int) -> dict[str, int]:
    together, width = digits.PACKED[value_bits]
    return {"TOGETHER": together, "WIDTH": width, "RADIX": 1 + (1 << value_bits)}


@lru_cache(maxsize=64)
def _places(layout: LevelLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a table without tensors, which suffices for a check, and each block's part number."""
    empty = [torch.empty(part.segment.shape, device="meta") for part in layout.parts]
    table = level_kernels.LevelTensors(layout, empty, device=device)
    return table.lines, table.part_of


@lru_cache(maxsize=8)
def _counting(device: torch.device, value_bits: int) -> bool:
    return triton_gate.proven(
        device,
        lambda place: _counts_alike(place, value_bits),
        "count packed digits differently from torch",
    )


def _counts_alike(device: torch.device, value_bits: int) -> bool:
    """Return whether a few means equal the CPU's, and bad payloads are refused."""
    layout = level_kernels.proof_layout()
    draws = np.random.default_rng(5)
    members = 5
    most = 1 << 40
    rate = 0.3 * SMALLEST
    divisors = [1.0 + count**0.5 for count in range(members + 1)]
    votes = []
    packed = []
    data = b""
    for _ in range(members):
        digit = np.array([0, 1, -1, 3, -3][: 1 + (1 << value_bits)], np.int8)
        votes_by_group = [
            torch.from_numpy(draws.choice(digit, (group.blocks, group.block)))
            for group in layout.groups
        ]
        votes_by_group[0][0] = 0
        group_shifts = [
            torch.from_numpy(draws.integers(0, MOST - LEAST + 1, (g.blocks, 1), np.uint8))
            for g in layout.groups
        ]
        group_shifts[0][0] = 0
        votes.append(DenseVotes(0, votes_by_group, group_shifts, layout))
        codes = [
            torch.where((group_votes != 0).any(1, keepdim=True), by + 1, 0)
            for group_votes, by in zip(votes_by_group, group_shifts, strict=True)
        ]
        exponents = packed_exponents(layout.canonical(codes).to(torch.uint8))
        data = exponents.numpy().tobytes() + digits.to_bytes(
            layout.canonical(votes_by_group).numpy(), value_bits
        )
        sent = [
            _entries(group_votes * 2.0 ** (by.double() + LEAST), device)
            for group_votes, by in zip(votes_by_group, group_shifts, strict=True)
        ]
        if encoded(layout, sent, value_bits) != data:
            return False
        vote = checked(data, 0, layout, value_bits, _never, device)
        if vote is None:
            return False
        packed.append(vote)
    steps = means(votes, layout, most, divisors, rate, torch.device("cpu"))
    tensors = [
        torch.randn(part.segment.shape, generator=torch.Generator().manual_seed(1))
        for part in layout.parts
    ]
    there = [tensor.to(device, copy=True) for tensor in tensors]
    count(
        packed,
        level_kernels.LevelTensors(layout, there, stores=[False, True, False]),
        value_bits,
        most,
        divisors,
        rate,
    )
    for number, (part, tensor) in enumerate(zip(layout.parts, tensors, strict=True)):
        for place, step in cells(tensor, part.of(steps[part.group]), part.blocks):
            place.copy_(step) if number == 1 else place.sub_(step)
    same = all(
        torch.equal(a.view(torch.int32), b.cpu().view(torch.int32))
        for a, b in zip(tensors, there, strict=True)
    )
    return same and all(
        checked(bad, 0, layout, value_bits, _never, device) is None for bad in _spoilt(data, layout)
    )


def _entries(values: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the indices and values that an encoder chooses from numbers [blocks, size]."""
    indices, chosen = strongest(values.float(), values.shape[1], 0.0)
    return indices.to(device), chosen.to(device)


def _spoilt(data: bytes, layout: LevelLayout) -> list[bytes]:
    """Return payloads with an invalid code, without exponents, and with an extra exponent."""
    at = digits_at(layout.blocks)
    none = bytes([data[0] | 1]) + data[1:]  # gives a block without votes an exponent
    return [data[:at] + b"\xff\xff" + data[at + 2 :], bytes(at) + data[at:], none]


def _never(data: bytes) -> DenseVotes:
    raise AssertionError("unpacked an invalid payload")
