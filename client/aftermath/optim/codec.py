"""The payload of one level of a result, and the votes in it.

Each set of votes has one encoding, so equal votes have equal hashes. Decoding refuses everything
else. All sizes follow from the result format, so nothing is allocated by a peer's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.optim import digits, packed, places, sparse_payloads
from aftermath.optim.blocks import UNUSED
from aftermath.optim.format import EXPONENT_BITS, ResultFormat, Values, whole_bytes
from aftermath.optim.lattice import LEAST, MOST, digits_of, exponents_of, is_three
from aftermath.optim.layout import LevelLayout, level_layout
from aftermath.optim.votes import Votes, WholeVotes

# Layout, little-endian. For every block in canonical order (segments, then blocks row-major): the
# bits of its places (`optim.places`), lowest bit first, zero-padded to a whole byte after the last
# block. Then the values. A block has `topk` entries for its places, ascending; the last ones may be
# unused.
# - Signs: one bit per entry, first entry in the lowest bit (1 is negative).
# - Floats: one fp32 per entry, a normal number.
# - Lattice: the exponent of every block in six bits (1 is the least), zero-padded to a whole byte;
#   the signs; with 2 bits another bit per entry (1 is three times the power of two).
# Blocks that are shorter as digits (`ResultFormat.as_digits`) have only exponents there. Their
# digits (`optim.digits`), in the same order, come last. Unused entries, exponents of blocks without
# votes and padding are zero. A zero coefficient is not a vote.
# Lattice votes are multiples of the lattice's smallest value, so their sums are exact. A member
# holds the votes of many peers at once: a vote takes two bytes, or one if a result has every
# number.
_MAGNITUDE = 0x7FFFFFFF  # mask of an fp32's magnitude bits
_SMALLEST = 0x00800000  # bits of the smallest normal fp32
_INFINITY = 0x7F800000


class BadPayload(AftermathError):
    """A peer's payload is not valid in this run's result format. The result must not be used."""


def encode_level(results: ResultFormat, level: int, indices: NDArray[np.uint16], values: NDArray[np.float32]) -> bytes:
    """Return the payload of a level, `results.payload_bytes(level)` bytes.

    `indices` and `values` have one number per entry, [results.entries(level)], in the order of
    `transform.strongest`. Raises ValueError for values that are not on the lattice.
    """
    used = indices != UNUSED
    values = np.where(used, values, np.float32(0))
    layout = level_layout(results, level)
    apart = ~layout.entry_digit
    parts = [_places(indices[apart], layout)]
    if results.values is Values.FLOAT:
        return parts[0] + values.astype("<f4").tobytes()
    if results.values.lattice_bits:
        if results.values is Values.ONE_BIT and is_three(values).any():
            raise ValueError("a value is three times a power of two, for which there is no bit")
        exponents = exponents_of(values, layout.entry_first)
        voted = used[layout.entry_first]
        codes = np.where(voted, exponents.astype(np.int16) - LEAST + 1, 0).astype(np.uint8)
        parts.append(_exponents(codes))
    parts.append(_packed(values[apart] < 0))
    if results.values is Values.TWO_BIT:
        parts.append(_packed(is_three(values[apart])))
    if layout.entry_digit.any():
        parts.append(_digits(indices[~apart], values[~apart], results, layout))
    return b"".join(parts)


def encode_whole(results: ResultFormat, level: int, chosen: Sequence[tuple[Tensor, Tensor]]) -> bytes:
    """Return the payload of a level that keeps every number (`results.whole`).

    `chosen` has indices int64 and values fp32 [blocks, topk] by group, on any device. Only the
    payload leaves the device.
    """
    layout = level_layout(results, level)
    rows = []
    codes = []
    device = chosen[0][0].device
    bits = results.values.bits
    if device.type != "cpu" and packed.usable(device, bits):
        return packed.encoded(layout, chosen, bits)
    for indices, values in chosen:
        found, exponents = digits_of(values, results.values.lattice_bits)
        codes.append(torch.where(found[:, :1] != 0, exponents - LEAST + 1, 0).to(torch.uint8))
        rows.append(_at_places(indices, found) if bool((indices == UNUSED).any()) else found)
    if rows[0].device.type == "cpu":
        written = digits.to_bytes(layout.canonical(rows).numpy(), results.values.bits)
        return _exponents(layout.canonical(codes).numpy()) + written
    exponents = packed.packed_exponents(layout.canonical(codes))
    return packed.downloaded(torch.cat([exponents, packed.packed_digits(layout.canonical(rows), results.values.bits)]))


def _at_places(indices: Tensor, found: Tensor) -> Tensor:
    """Reorder digits from entries to places, for blocks that keep fewer than all numbers."""
    blocks, size = found.shape
    beyond = indices.masked_fill(indices == UNUSED, size)
    return found.new_zeros(blocks, size + 1).scatter_(1, beyond, found)[:, :size]


def decode_level(
    data: bytes | bytearray | memoryview, results: ResultFormat, level: int, device: torch.device | None = None
) -> Votes:
    """Return the votes in a peer's payload of one level.

    Raises BadPayload with the reason, or SchemaError for an invalid level. A `device` that can
    decode keeps the votes; they stay packed if every number has a digit.
    """
    size = results.payload_bytes(level)
    if len(data) != size:
        raise BadPayload(f"a result of level {level} takes {size} bytes, not {len(data)}")
    layout = level_layout(results, level)
    if device is not None and (found := _read_on(device, data, results, level)) is not None:
        return found
    before = results.place_bytes(level)
    between = results.value_bytes(level)
    octets = np.frombuffer(data, np.uint8)
    if results.whole(level):
        return _whole(octets[:between], octets[between:], results, layout, level)
    indices, small = _read(octets[:before], octets[before + between :], results, layout, level)
    used = indices != UNUSED
    rest = octets[before : before + between]
    positions = torch.from_numpy(layout.entry_base[used] + indices[used])
    if results.values is Values.FLOAT:
        return Votes(level, positions, torch.from_numpy(_floats(rest, used, layout, level)[used]))
    shifts = None
    if results.values.lattice_bits:
        count = whole_bytes(EXPONENT_BITS * int(layout.entry_first.sum()))
        shifts = torch.from_numpy(_shifts(rest[:count], used, layout, level)[used])
        rest = rest[count:]
    values = _signs(rest, used, results, layout, level)
    if len(small):
        values = _together(values, small, layout)
    return Votes(level, positions, torch.from_numpy(values[used]), shifts)


def _whole(
    exponents: NDArray[np.uint8], written: NDArray[np.uint8], results: ResultFormat, layout: LevelLayout, level: int
) -> WholeVotes:
    """Return the votes of a payload that has only exponents and a digit for every number."""
    found = _digits_of(written, results, layout, level)
    voted = layout.canonical([(own != 0).any(1, keepdim=True) for own in found]).numpy()
    shifts = torch.from_numpy(_block_shifts(exponents, voted, layout, level))
    return WholeVotes(level, found, layout.grouped(shifts, [1] * len(found)), layout)


def _read_on(
    device: torch.device, data: bytes | bytearray | memoryview, results: ResultFormat, level: int
) -> Votes | None:
    """Decode a payload of the right size on a device. None if the device cannot, or it is not
    valid.
    """
    layout = level_layout(results, level)
    bits = results.values.bits
    if not results.whole(level):
        can = sparse_payloads.usable(device, results, level)
        return sparse_payloads.decoded(data, results, level, device) if can else None
    unpack = partial(_whole_of, results=results, layout=layout, level=level)
    return packed.checked(data, level, layout, bits, unpack, device) if packed.usable(device, bits) else None


def _whole_of(data: bytes, results: ResultFormat, layout: LevelLayout, level: int) -> WholeVotes:
    """Return the votes of a payload known to be valid."""
    octets = np.frombuffer(data, np.uint8)
    between = results.value_bytes(level)
    return _whole(octets[:between], octets[between:], results, layout, level)


def _packed(bits: NDArray[Any]) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _exponents(codes: NDArray[np.uint8]) -> bytes:
    """Return the packed exponents of every block."""
    return _packed(np.unpackbits(codes[:, None], axis=1, bitorder="little", count=EXPONENT_BITS))


def _widths(layout: LevelLayout, as_digits: bool) -> list[int]:
    """Return the entries per block of each group that has (or has not) digits, else 0."""
    return [group.topk if group.digits == as_digits else 0 for group in layout.groups]


def _places(indices: NDArray[np.uint16], layout: LevelLayout) -> bytes:
    """Return the places of all blocks that have them, from indices by entry.

    They travel as int16, since torch hardly supports uint16.
    """
    bits = [
        torch.empty(group.blocks, 0, dtype=torch.uint8)
        if group.digits
        else torch.from_numpy(places.to_bits(own.numpy().view(np.uint16), group.block))
        for own, group in zip(
            layout.grouped(torch.from_numpy(indices.view(np.int16)), _widths(layout, False)), layout.groups, strict=True
        )
    ]
    return _packed(layout.canonical(bits).numpy())


def _digits(
    indices: NDArray[np.uint16], values: NDArray[np.float32], results: ResultFormat, layout: LevelLayout
) -> bytes:
    """Return the digits of all blocks that have them, from their entries."""
    small = 1 - 2 * (values < 0).view(np.int8)
    if results.values is Values.TWO_BIT:
        small *= 1 + 2 * is_three(values).view(np.int8)
    widths = _widths(layout, True)
    found = [
        torch.from_numpy(digits.of_entries(own.numpy().view(np.uint16), value.numpy(), group.block))
        if group.digits
        else torch.empty(group.blocks, 0, dtype=torch.int8)
        for own, value, group in zip(
            layout.grouped(torch.from_numpy(indices.view(np.int16)), widths),
            layout.grouped(torch.from_numpy(small), widths),
            layout.groups,
            strict=True,
        )
    ]
    return digits.to_bytes(layout.canonical(found).numpy(), results.values.bits)


def _read(
    before: NDArray[np.uint8], after: NDArray[np.uint8], results: ResultFormat, layout: LevelLayout, level: int
) -> tuple[NDArray[np.uint16], NDArray[np.int8]]:
    """Return the indices of all entries, and the values of entries that have digits.

    Raises BadPayload for invalid or left-over bits.
    """
    sizes = [0 if group.digits else places.bits_of(group.block, group.topk) for group in layout.groups]
    bits = np.unpackbits(before, bitorder="little")
    end = sum(g.blocks * n for g, n in zip(layout.groups, sizes, strict=True))
    if bits[end:].any():
        raise BadPayload(f"level {level}: a bit after the last place is set")
    of_places = layout.grouped(torch.from_numpy(bits[:end]), sizes)
    of_digits = _digits_of(after, results, layout, level)
    found = []
    values = []
    for number, group in enumerate(layout.groups):
        if group.digits:
            indices, own, wrong = digits.in_entries(of_digits[number].numpy(), group.topk)
            values.append(torch.from_numpy(own))
        else:
            indices, wrong = places.from_bits(of_places[number].numpy(), group.block, group.topk)
            values.append(torch.empty(group.blocks, 0, dtype=torch.int8))
        if wrong.any():
            segment, block = layout.block_of(number, int(wrong.argmax()))
            raise BadPayload(
                f"level {level}, {segment.name}, block {block}: no set of at most {group.topk} of {group.block} places"
            )
        found.append(torch.from_numpy(indices.view(np.int16)))
    return layout.canonical(found).numpy().view(np.uint16), layout.canonical(values).numpy()


def _digits_of(data: NDArray[np.uint8], results: ResultFormat, layout: LevelLayout, level: int) -> list[Tensor]:
    """Return the digits [blocks, places] of each group that has them. Raises BadPayload."""
    widths = [group.block if group.digits else 0 for group in layout.groups]
    count = sum(group.blocks * width for group, width in zip(layout.groups, widths, strict=True))
    if not count:
        return layout.grouped(torch.empty(0, dtype=torch.int8), widths)
    found, wrong = digits.from_bytes(data, count, results.values.bits)
    if wrong is not None:
        raise BadPayload(f"level {level}: the code of digit {wrong} is not valid")
    return layout.grouped(torch.from_numpy(found), widths)


def _together(apart: NDArray[np.int8], small: NDArray[np.int8], layout: LevelLayout) -> NDArray[np.int8]:
    """Merge the values of entries without digits (`apart`) and with digits (`small`)."""
    if not len(apart):
        return small
    found = np.empty(layout.entries, np.int8)
    found[~layout.entry_digit] = apart
    found[layout.entry_digit] = small
    return found


def _signs(
    data: NDArray[np.uint8], used: NDArray[np.bool_], results: ResultFormat, layout: LevelLayout, level: int
) -> NDArray[np.int8]:
    """Return the votes of all entries whose blocks have no digits: +1, -1, and with 2 bits +3, -3.

    Raises BadPayload if a bit is set for an unused entry.
    """
    plane = len(data) // results.values.bits
    signs = 1 - 2 * _plane(data[:plane], used, layout, level, "sign").view(np.int8)
    if results.values is Values.TWO_BIT:
        signs *= (1 + 2 * _plane(data[plane:], used, layout, level, "size")).view(np.int8)
    return signs


def _plane(
    data: NDArray[np.uint8], used: NDArray[np.bool_], layout: LevelLayout, level: int, what: str
) -> NDArray[np.uint8]:
    """Return one bit for every entry whose block has no digits.

    Raises BadPayload if a bit is set for an unused entry.
    """
    bits = np.unpackbits(data, bitorder="little")
    own = used[~layout.entry_digit]
    if bits[len(own) :].any():
        raise BadPayload(f"level {level}: a bit after the last {what} is set")
    bits = bits[: len(own)]
    stray = (bits != 0) & ~own
    if stray.any():
        entry = int(np.flatnonzero(~layout.entry_digit)[stray.argmax()])
        raise BadPayload(f"{_place(layout, level, entry)}: the {what} of an unused entry is set")
    return bits


def _shifts(data: NDArray[np.uint8], used: NDArray[np.bool_], layout: LevelLayout, level: int) -> NDArray[np.uint8]:
    """Return the shift of every entry's value. Raises BadPayload for an invalid exponent."""
    firsts = np.flatnonzero(layout.entry_first)
    return np.repeat(_block_shifts(data, used[firsts], layout, level), np.diff(firsts, append=layout.entries))


def _block_shifts(
    data: NDArray[np.uint8], voted: NDArray[np.bool_], layout: LevelLayout, level: int
) -> NDArray[np.uint8]:
    """Return the shift of every block. `voted` marks blocks with votes. Raises BadPayload."""
    bits = np.unpackbits(data, bitorder="little")
    end = EXPONENT_BITS * len(voted)
    if bits[end:].any():
        raise BadPayload(f"level {level}: a bit after the last exponent is set")
    codes = np.packbits(bits[:end].reshape(-1, EXPONENT_BITS), axis=1, bitorder="little")[:, 0]
    wrong = np.where(voted, (codes < 1) | (codes > MOST - LEAST + 1), codes != 0)
    if wrong.any():
        block = int(wrong.argmax())
        what = f"an exponent that is not from {LEAST} to {MOST}" if voted[block] else "an exponent without votes"
        raise BadPayload(f"{_place(layout, level, int(np.flatnonzero(layout.entry_first)[block]))}: {what}")
    return np.where(voted, codes - np.uint8(1), np.uint8(0))


def _floats(data: NDArray[np.uint8], used: NDArray[np.bool_], layout: LevelLayout, level: int) -> NDArray[np.float32]:
    """Return the fp32 values of all entries. Raises BadPayload for an invalid value."""
    bits = data.view("<u4")
    magnitude = bits & _MAGNITUDE
    wrong = np.where(used, (magnitude < _SMALLEST) | (magnitude >= _INFINITY), bits != 0)
    if wrong.any():
        entry = int(wrong.argmax())
        value = "a value that is zero, too small or not finite" if used[entry] else "an unused entry with a value"
        raise BadPayload(f"{_place(layout, level, entry)}: {value}")
    return data.view("<f4").astype(np.float32)


def _place(layout: LevelLayout, level: int, entry: int) -> str:
    return f"level {level}, {layout.segment_of(entry).name}, entry {entry}"
