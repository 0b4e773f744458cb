"""Pack bits into bytes and unpack them, lowest bit first, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_bits(bits: Tensor) -> Tensor:
    """Pack bits, uint8 [n] of 0 and 1, into uint8 [ceil(n / 8)]. Zeros fill the last byte."""
    octets = bits.new_zeros(-(-len(bits) // 8), 8)
    octets.view(-1)[: len(bits)] = bits
    packed = octets[:, 0].clone()
    for place in range(1, 8):
        packed |= octets[:, place] << place
    return packed


def unpack_bits(octets: Tensor) -> Tensor:
    """Return the bits of uint8 [n] as uint8 [8 n]."""
    bits = octets.new_empty(len(octets), 8)
    for place in range(8):
        torch.bitwise_and(octets >> place, 1, out=bits[:, place])
    return bits.view(-1)
