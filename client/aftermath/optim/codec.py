"""The bytes of one level of a result, and the votes in them.

Layout, all little-endian (sizes follow from the result format alone): for every block in canonical order (segments,
then blocks row-major) the bits of its places (`optim.places`), lowest bit first, with zeros up to a whole byte after
those of the last block; then the values. A block has `topk` entry slots, for its places in ascending order; those at
its end may be unused.
- Signs: one bit for every slot, first slot in the lowest bit (1 is negative).
- Floats: an fp32 for every slot.
- On the lattice: for every block its exponent as a signed byte, then the signs, then with 2 bits another bit for every
  slot (1 is three times the power of two).
The values of unused slots, the exponents of blocks without votes and the bits after the last slot are zero.

Decided
- One encoding per set of votes: whatever does not fit it is refused with a sentence, so equal votes have equal hashes.
- Nothing is allocated from what a peer says: the size is compared with the format's before anything else.
- A coefficient that is exactly zero is no vote; a float vote is a normal number (no zero, subnormal, NaN, infinity).
- Lattice votes are whole multiples of the lattice's smallest value, so that their sums are exact. A member holds those
  of many peers at once, so a vote is kept in two bytes, and peers who send everything share one tensor of positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.optim.blocks import UNUSED
from aftermath.optim.format import ResultFormat, Values, plane_bytes
from aftermath.optim.lattice import LEAST, MOST, exponents_of, is_three
from aftermath.optim.layout import LevelLayout, level_layout
from aftermath.optim.places import bits_of, from_bits, to_bits

_MAGNITUDE = 0x7FFFFFFF  # of the bits of an fp32
_SMALLEST, _INFINITY = 0x00800000, 0x7F800000  # smallest normal number, infinity


class BadPayload(AftermathError):
    """A peer's result is not a valid encoding of this run's result format; the result must not be used."""


@dataclass(frozen=True)
class Votes:
    """One peer's votes on one level: distinct coefficients in ascending slot order of the wire."""

    level: int
    positions: Tensor  # int64 [n], positions of `optim.layout`, on the CPU
    values: Tensor
    """Signs: int8 [n] in {-1, +1}. Floats: fp32 [n], finite and not zero. On the lattice, in multiples of its smallest
    value and not zero: int64 [n], or int8 [n] that `shifts` moves to the left.
    """
    shifts: Tensor | None = None  # uint8 [n]

    @property
    def kind(self) -> torch.dtype:
        """Of the values, as they count."""
        return self.values.dtype if self.shifts is None else torch.int64

    def multiples(self) -> Tensor:
        """A copy of values on the lattice, int64 [n]."""
        whole = self.values.to(torch.int64, copy=True)
        return whole if self.shifts is None else whole.bitwise_left_shift_(self.shifts)


def encode_level(results: ResultFormat, level: int, indices: NDArray[np.uint16], values: NDArray[np.float32]) -> bytes:
    """The payload of a level, `results.payload_bytes(level)` bytes.

    `indices` and `values` hold one number per entry slot, [results.entries(level)], as `transform.strongest` orders
    them. Raises ValueError for values that a lattice does not have.
    """
    used = indices != UNUSED
    values = np.where(used, values, np.float32(0))
    layout = level_layout(results, level)
    parts = [_places(indices, layout)]
    if results.values is Values.FLOAT:
        return parts[0] + values.astype("<f4").tobytes()
    if results.values.lattice_bits:
        parts.append(exponents_of(values, layout.slot_first).tobytes())
    parts.append(np.packbits(values < 0, bitorder="little").tobytes())
    if results.values is Values.TWO_BIT:
        parts.append(np.packbits(is_three(values), bitorder="little").tobytes())
    return b"".join(parts)


def decode_level(data: bytes | bytearray | memoryview, results: ResultFormat, level: int) -> Votes:
    """The votes in a peer's payload of one level. Raises BadPayload with what is wrong, SchemaError for a bad level."""
    size = results.payload_bytes(level)
    if len(data) != size:
        raise BadPayload(f"a result of level {level} takes {size} bytes, not {len(data)}")
    layout = level_layout(results, level)
    places = results.place_bytes(level)
    indices = _indices(np.frombuffer(data, np.uint8, count=places), layout, level)
    used = indices != UNUSED
    rest = np.frombuffer(data, np.uint8, offset=places)
    positions = layout.positions_of(indices, used)
    if bits := results.values.lattice_bits:
        values, shifts = _multiples(rest, used, layout, level, bits)
        return Votes(level, positions, torch.from_numpy(values[used]), torch.from_numpy(shifts[used]))
    found = _signs if results.values is Values.SIGN else _floats
    return Votes(level, positions, torch.from_numpy(found(rest, used, layout, level)[used]))


def _places(indices: NDArray[np.uint16], layout: LevelLayout) -> bytes:
    """The places of all blocks, of indices by slot. As int16, since torch hardly knows u16."""
    grouped = layout.grouped(torch.from_numpy(indices.view(np.int16)), [group.topk for group in layout.groups])
    bits = [
        torch.from_numpy(to_bits(own.numpy().view(np.uint16), group.block))
        for own, group in zip(grouped, layout.groups, strict=True)
    ]
    return np.packbits(layout.canonical(bits).numpy(), bitorder="little").tobytes()


def _indices(data: NDArray[np.uint8], layout: LevelLayout, level: int) -> NDArray[np.uint16]:
    """The indices of all slots. Raises BadPayload if a block's bits are no set of places, or if any are left over."""
    sizes = [bits_of(group.block, group.topk) for group in layout.groups]
    bits = np.unpackbits(data, bitorder="little")
    size = sum(group.blocks * size for group, size in zip(layout.groups, sizes, strict=True))
    if bits[size:].any():
        raise BadPayload(f"level {level}: a bit after the last place is set")
    found = []
    for number, own in enumerate(layout.grouped(torch.from_numpy(bits[:size]), sizes)):
        group = layout.groups[number]
        indices, wrong = from_bits(own.numpy(), group.block, group.topk)
        if wrong.any():
            segment, block = layout.block_of(number, int(wrong.argmax()))
            raise BadPayload(
                f"level {level}, {segment.name}, block {block}: no set of at most {group.topk} of {group.block} places"
            )
        found.append(torch.from_numpy(indices.view(np.int16)))
    return layout.canonical(found).numpy().view(np.uint16)


def _signs(data: NDArray[np.uint8], used: NDArray[np.bool_], layout: LevelLayout, level: int) -> NDArray[np.int8]:
    """Votes of +1 and -1 for all slots. Raises BadPayload if a bit is set that belongs to no vote."""
    return 1 - 2 * _plane(data, used, layout, level, "sign").astype(np.int8)


def _plane(
    data: NDArray[np.uint8], used: NDArray[np.bool_], layout: LevelLayout, level: int, what: str
) -> NDArray[np.uint8]:
    """One bit for every slot. Raises BadPayload if one is set that belongs to no vote."""
    bits = np.unpackbits(data, bitorder="little")
    if bits[layout.entries :].any():
        raise BadPayload(f"level {level}: a bit after the last {what} is set")
    bits = bits[: layout.entries]
    stray = (bits != 0) & ~used
    if stray.any():
        raise BadPayload(f"{_place(layout, level, int(stray.argmax()))}: the {what} of an unused entry is set")
    return bits


def _multiples(
    data: NDArray[np.uint8], used: NDArray[np.bool_], layout: LevelLayout, level: int, bits: int
) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Values of all slots, and how far each is shifted. Raises BadPayload for what is on no lattice."""
    count, plane = int(layout.slot_first.sum()), plane_bytes(layout.entries)
    exponents, voted = data[:count].view(np.int8), used[layout.slot_first]
    wrong = np.where(voted, (exponents < LEAST) | (exponents > MOST), exponents != 0)
    if wrong.any():
        block = int(wrong.argmax())
        slot = int(np.flatnonzero(layout.slot_first)[block])
        what = f"an exponent that is not from {LEAST} to {MOST}" if voted[block] else "an exponent without votes"
        raise BadPayload(f"{_place(layout, level, slot)}: {what}")
    signs = _signs(data[count : count + plane], used, layout, level)
    if bits == 2:
        signs *= (1 + 2 * _plane(data[count + plane :], used, layout, level, "size")).view(np.int8)
    shifts = np.where(voted, exponents - LEAST, 0).astype(np.uint8)
    slots = np.diff(np.flatnonzero(layout.slot_first), append=layout.entries)
    return signs, np.repeat(shifts, slots)


def _floats(data: NDArray[np.uint8], used: NDArray[np.bool_], layout: LevelLayout, level: int) -> NDArray[np.float32]:
    """The fp32 values of all slots. Raises BadPayload for a value that is no vote, or where there must be none."""
    bits = data.view("<u4")
    magnitude = bits & _MAGNITUDE
    wrong = np.where(used, (magnitude < _SMALLEST) | (magnitude >= _INFINITY), bits != 0)
    if wrong.any():
        slot = int(wrong.argmax())
        value = "a value that is zero, too small or not finite" if used[slot] else "an unused entry with a value"
        raise BadPayload(f"{_place(layout, level, slot)}: {value}")
    return data.view("<f4").astype(np.float32)


def _place(layout: LevelLayout, level: int, slot: int) -> str:
    return f"level {level}, {layout.segment_of(slot).name}, entry {slot}"
