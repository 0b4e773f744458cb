"""The sizes of index codes (`optim.index_coding`).

An owner's commands use this module, so it does not import torch, which takes seconds to load.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)
def bits_of(size: int, most: int) -> int:
    """Return the code size in bits of a set of at most `most` indices below `size`.

    Both numbers are from 1 to 65535.
    """
    return _code_bits(size, most, low_bits_of(size, most))


@lru_cache(maxsize=256)
def low_bits_of(size: int, most: int) -> int:
    """Return the number of low bits that gives the shortest code, about log2(size / most)."""
    return min(range(size.bit_length()), key=lambda low: _code_bits(size, most, low))


def _code_bits(size: int, most: int, low: int) -> int:
    return most * (low + 1) + -(-size >> low) if low else size
