"""The format of a result: its blocks, its kind of values, and its exact size in bytes.

`optim.codec` has the order of the bytes. Index codes (`optim.index_coding`) and digits
(`optim.digits`) have fixed sizes. So the schema alone determines the size of a result, and a member
knows it before it requests the first byte.
"""

# A digit encodes index and value together. Blocks that keep most of their values take fewer bits
# as digits. A result is dense on a level if all of that level's blocks keep every value and are
# written as digits: it has one digit per value, and no positions.

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from aftermath.model.levels import checked_level
from aftermath.optim import digits
from aftermath.optim.blocks import Blocks
from aftermath.optim.index_sizes import bits_of

FLOAT_BYTES = 4
EXPONENT_BITS = 6
"""Bits of a block's exponent code. 0 means no votes, and 1 means the smallest exponent."""


class Transform(StrEnum):
    """The transform of a block before its strongest numbers are kept."""

    DCT = "dct"
    NONE = "none"


class Values(StrEnum):
    """The kind of value that is sent with a coefficient's index."""

    SIGN = "sign"
    """One bit: a vote of +1 or -1."""
    FLOAT = "float32"
    ONE_BIT = "1 bit"
    """One bit, plus or minus the block's power of two."""
    TWO_BIT = "2 bits"
    """Two bits: plus or minus one or three times the block's power of two."""

    @property
    def lattice_bits(self) -> int:
        """Return the bits of a lattice value (`optim.lattice`); 0 for other values."""
        return {Values.ONE_BIT: 1, Values.TWO_BIT: 2}.get(self, 0)

    @property
    def bits(self) -> int:
        """Return the bits of a value, without the block's power of two; 0 for an fp32."""
        return 1 if self is Values.SIGN else self.lattice_bits


def whole_bytes(bits: int) -> int:
    """Return the number of bytes that hold `bits` bits."""
    return -(-bits // 8)


@dataclass(frozen=True)
class ResultFormat:
    """The format of a run's payloads."""

    blocks: tuple[Blocks, ...]  # per segment, in the state schema's order
    levels: int
    transform: Transform
    values: Values

    def __hash__(self) -> int:
        """Return the cached hash. Each payload looks up tables by its format."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.blocks, self.levels, self.transform, self.values))

    def of_level(self, level: int) -> tuple[Blocks, ...]:
        """Return the blocks of one level's segments in canonical order. Raises SchemaError."""
        return self._by_level[checked_level(level, self.levels)]

    def entries(self, level: int) -> int:
        """Return the entries in one level of a result."""
        return sum(blocks.entries for blocks in self.of_level(level))

    def as_digits(self, places: int, topk: int) -> bool:
        """Return whether blocks are written as digits. They are if that takes fewer bits."""
        bits = self.values.bits
        return bits > 0 and digits.fewer(places, bits, bits_of(places, topk) + bits * topk)

    def is_dense(self, level: int) -> bool:
        """Return whether a level is dense: every value is kept and written as a digit."""
        return self._dense_levels[checked_level(level, self.levels)]

    def index_bytes(self, level: int) -> int:
        """Return the bytes of a level's index codes. All blocks share one rounding to bytes."""
        return whole_bytes(sum(b.count * bits_of(b.size, b.topk) for b in self._apart(level)))

    def value_bytes(self, level: int) -> int:
        """Return the bytes of a level's values.

        Signs take one bit per entry, rounded up once. Floats take one fp32 per entry. Lattice
        values take the exponents of all blocks and each bit plane of all entries, each rounded up.
        """
        entries = sum(blocks.entries for blocks in self._apart(level))
        if self.values is Values.FLOAT:
            return entries * FLOAT_BYTES
        exponents = (
            EXPONENT_BITS * sum(b.count for b in self.of_level(level))
            if self.values.lattice_bits
            else 0
        )
        return whole_bytes(exponents) + self.values.bits * whole_bytes(entries)

    def digit_bytes(self, level: int) -> int:
        """Return the bytes of a level's digits."""
        count = sum(
            b.count * b.size for b in self.of_level(level) if self.as_digits(b.size, b.topk)
        )
        return digits.size_of(count, self.values.bits) if count else 0

    def payload_bytes(self, level: int) -> int:
        """Return the exact bytes of one level of a result: index codes, values and digits."""
        return self._payload_bytes[checked_level(level, self.levels)]

    def result_bytes(self, tier: int = 0) -> int:
        """Return the exact bytes of a tier-k member's result in a round, over all its levels."""
        return sum(
            self.payload_bytes(level)
            for level in range(checked_level(tier, self.levels), self.levels)
        )

    def document(self) -> dict[str, Any]:
        """Return the format as JSON values. Segments are named by their order."""
        blocks = [
            {name: value for name, value in asdict(b).items() if name != "segment"}
            for b in self.blocks
        ]
        return {"blocks": blocks, "transform": self.transform.value, "values": self.values.value}

    def _apart(self, level: int) -> list[Blocks]:
        """Return the blocks that are written as index codes and values, not as digits."""
        return [
            blocks
            for blocks in self.of_level(level)
            if not self.as_digits(blocks.size, blocks.topk)
        ]

    @cached_property
    def _dense_levels(self) -> tuple[bool, ...]:
        def keeps_all(blocks: Blocks) -> bool:
            return blocks.topk == blocks.size and self.as_digits(blocks.size, blocks.topk)

        return tuple(
            self.values.lattice_bits > 0 and all(map(keeps_all, level_blocks))
            for level_blocks in self._by_level
        )

    @cached_property
    def _payload_bytes(self) -> tuple[int, ...]:
        return tuple(
            self.index_bytes(level) + self.value_bytes(level) + self.digit_bytes(level)
            for level in range(self.levels)
        )

    @cached_property
    def _by_level(self) -> tuple[tuple[Blocks, ...], ...]:
        return tuple(
            tuple(b for b in self.blocks if b.segment.level == level)
            for level in range(self.levels)
        )
