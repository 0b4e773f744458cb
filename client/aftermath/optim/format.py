"""The format of a result: which coefficients of which blocks it holds, what their values are, and its exact size.

Decided: a result of level l is, over the level's segments in canonical order and their blocks in row-major order, the
places that each block keeps, in as many bits as its size and top-k say (`optim.places`), all in one string of bits that
ends with a whole byte; then every value. So its size follows from the schema alone, and is known before the first byte
is asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from aftermath.model.levels import checked_level
from aftermath.optim.blocks import Blocks
from aftermath.optim.places import bits_of

FLOAT_BYTES = 4


class Transform(StrEnum):
    """What the numbers of a block are turned into before the strongest are kept."""

    DCT = "dct"
    NONE = "none"


class Values(StrEnum):
    """What is sent of a coefficient beside its place."""

    SIGN = "sign"
    """One bit: a vote of +1 or -1."""
    FLOAT = "float32"
    ONE_BIT = "1 bit"
    """A power of two for every block, and one bit: plus or minus that."""
    TWO_BIT = "2 bits"
    """The same, and one bit more: one or three times that."""

    @property
    def lattice_bits(self) -> int:
        """Bits of a value on the lattice (`optim.lattice`); 0 for values that are not on it."""
        return {Values.ONE_BIT: 1, Values.TWO_BIT: 2}.get(self, 0)


def plane_bytes(slots: int) -> int:
    """Bytes of one bit for each slot."""
    return -(-slots // 8)


@dataclass(frozen=True)
class ResultFormat:
    """What the payloads of a run's results are."""

    blocks: tuple[Blocks, ...]  # of every segment, in the state schema's order
    levels: int
    transform: Transform
    values: Values

    def of_level(self, level: int) -> tuple[Blocks, ...]:
        """The blocks of one level's segments in canonical order. Raises SchemaError if there is no such level."""
        return self._by_level[checked_level(level, self.levels)]

    def entries(self, level: int) -> int:
        """Coefficient slots in one level of a result."""
        return sum(blocks.entries for blocks in self.of_level(level))

    def place_bytes(self, level: int) -> int:
        """Bytes of a level's places: the bits of all its blocks, rounded up once."""
        return -(-sum(blocks.count * bits_of(blocks.size, blocks.topk) for blocks in self.of_level(level)) // 8)

    def value_bytes(self, level: int) -> int:
        """Bytes of a level's values: one sign bit per slot, rounded up once; or one fp32 per slot; or on the lattice
        one byte per block, and every bit of all slots rounded up by itself.
        """
        slots = self.entries(level)
        if self.values is Values.FLOAT:
            return slots * FLOAT_BYTES
        if self.values is Values.SIGN:
            return plane_bytes(slots)
        return sum(b.count for b in self.of_level(level)) + self.values.lattice_bits * plane_bytes(slots)

    def payload_bytes(self, level: int) -> int:
        """Exact bytes of one level of a result: all places of the level, then all its values."""
        return self.place_bytes(level) + self.value_bytes(level)

    def result_bytes(self, tier: int = 0) -> int:
        """Exact bytes of the result that a tier-k member makes in a round: its levels together."""
        return sum(self.payload_bytes(level) for level in range(checked_level(tier, self.levels), self.levels))

    def document(self) -> dict[str, Any]:
        """All of it as JSON has it; segments are named by their order."""
        kept = [{name: value for name, value in asdict(b).items() if name != "segment"} for b in self.blocks]
        return {"blocks": kept, "transform": self.transform.value, "values": self.values.value}

    @cached_property
    def _by_level(self) -> tuple[tuple[Blocks, ...], ...]:
        return tuple(tuple(b for b in self.blocks if b.segment.level == level) for level in range(self.levels))
