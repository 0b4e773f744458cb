"""Choose the coefficients to send with Triton kernels on a CUDA device."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aftermath.optim import triton_gate
from aftermath.optim.lattice import LEAST, MOST, SMALLEST, fraction_bits, quantise
from aftermath.optim.transform import ZERO_BELOW, strongest

_LARGEST_BLOCK = 1 << 14  # `kernels.triton_topk.choose` holds every number of a block at once
_PROVED = 16  # blocks of the comparison


def chooses(device: torch.device, block: int, topk: int, bits: int) -> bool:
    """Return whether kernels choose `topk` of `block` coefficients, rounded to a lattice of
    `bits`.
    """
    return triton_gate.works_on(device) and _choosing(device, block, topk, bits)


@lru_cache(maxsize=64)
def _choosing(device: torch.device, block: int, topk: int, bits: int) -> bool:
    if block > _LARGEST_BLOCK:
        return False
    alike = partial(_chooses_alike, block=block, topk=topk, bits=bits)
    return triton_gate.proven(device, alike, "choose coefficients differently from torch")


def _chooses_alike(device: torch.device, *, block: int, topk: int, bits: int) -> bool:
    numbers = torch.randn(_PROVED, block, generator=torch.Generator().manual_seed(block))
    numbers[: _PROVED // 4].mul_(2).round_()  # many equal numbers and zeros
    numbers[_PROVED // 4 : _PROVED // 2] *= 2.0**-39  # many numbers below the lattice
    numbers[0] = 0
    smallest = SMALLEST if bits else ZERO_BELOW
    choice = choose(numbers.to(device), topk, smallest, bits)
    indices, values = strongest(numbers, topk, smallest)
    expected = quantise(values, bits) if bits else values
    same = torch.equal(choice[0].cpu(), indices)
    return same and torch.equal(choice[1].cpu().view(torch.int32), expected.view(torch.int32))


def choose(coefficients: Tensor, topk: int, smallest: float, bits: int) -> tuple[Tensor, Tensor]:
    """Return indices int64 and values fp32 [n, topk] of coefficients fp32 [n, block].

    `bits` is 1 or 2 for lattice values, and 0 for floats.
    """
    from aftermath.kernels import triton_topk

    blocks, size = coefficients.shape
    indices = torch.empty(blocks, topk, dtype=torch.int64, device=coefficients.device)
    values = torch.empty(blocks, topk, device=coefficients.device)
    least = int(np.float32(smallest).view(np.int32))
    how: dict[str, Any] = {
        "TOPK": topk,
        "LANES": _power(size),
        "BITS": bits,
        "FRACTION": fraction_bits(topk),
        "WHOLE": topk >= size,
    }
    triton_topk.choose[(blocks,)](
        coefficients.contiguous(),
        indices,
        values,
        size,
        least,
        **how,
        LEAST=LEAST,
        MOST=MOST,
        **triton_topk.EXACT,
    )
    return indices, values


def _power(size: int) -> int:
    """Return the least power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
