"""Pack bits into bytes and unpack them, lowest bit first, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

_GATHER = sum(1 << (56 - 7 * byte) for byte in range(8))


def pack_bits(bits: Tensor) -> Tensor:
    """Pack bits, uint8 [n] of 0 and 1, into uint8 [ceil(n / 8)]. Zeros fill the last byte."""
    octets = bits.new_zeros(-(-len(bits) // 8), 8)
    octets.view(-1)[: len(bits)] = bits
    # The product moves bit 0 of byte k to bit 56 + k. No two of its terms meet, so nothing carries.
    words = octets.view(torch.int64) * _GATHER
    return words.bitwise_right_shift_(56).to(torch.uint8).view(-1)


def unpack_bits(octets: Tensor) -> Tensor:
    """Return the bits of uint8 [n] as uint8 [8 n]."""
    bits = octets.new_empty(len(octets), 8)
    for place in range(8):
        torch.bitwise_and(octets >> place, 1, out=bits[:, place])
    return bits.view(-1)
