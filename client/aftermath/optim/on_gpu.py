"""Choose coefficients with Triton kernels on a CUDA device, and prove kernels before their use.

A replica with different bits would diverge from all others. So before its first use on a device, a
kernel's output is compared bit by bit with torch's. A kernel that differs or does not compile is
not used, and the reason is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aftermath.optim.lattice import LEAST, MOST, SMALLEST, fraction_bits, quantise
from aftermath.optim.transform import ZERO_BELOW, strongest

logger = logging.getLogger(__name__)
_LARGEST_BLOCK = 1 << 14  # `kernels.triton_blocks.choose` holds every number of a block at once
_PROVED = 16  # blocks of the comparison


def works_on(device: torch.device) -> bool:
    """Return whether the device can run Triton kernels."""
    return device.type == "cuda" and torch.cuda.is_available() and find_spec("triton") is not None


def chooses(device: torch.device, block: int, topk: int, bits: int) -> bool:
    """Return whether kernels choose `topk` of `block` coefficients, rounded to a lattice of
    `bits`.
    """
    return works_on(device) and _choosing(device, block, topk, bits)


def proven(device: torch.device, alike: Callable[[torch.device], bool], what: str) -> bool:
    """Return whether kernels and torch give equal results on a device, according to `alike`. If
    not, log why.

    `what` is the log's wording for a difference, for example "differ from torch".
    """
    try:
        if alike(device):
            return True
    except Exception as error:  # the compiler may raise anything; torch does the same work
        what = f"fail: {(str(error).strip() or repr(error)).splitlines()[0]}"
    logger.warning("Triton kernels on %s %s; using torch instead", device, what)
    return False


@lru_cache(maxsize=64)
def _choosing(device: torch.device, block: int, topk: int, bits: int) -> bool:
    if block > _LARGEST_BLOCK:
        return False
    alike = partial(_chooses_alike, block=block, topk=topk, bits=bits)
    return proven(device, alike, "choose coefficients differently from torch")


def _chooses_alike(device: torch.device, *, block: int, topk: int, bits: int) -> bool:
    numbers = torch.randn(_PROVED, block, generator=torch.Generator().manual_seed(block))
    numbers[: _PROVED // 4].mul_(2).round_()  # many equal numbers and zeros
    numbers[_PROVED // 4 : _PROVED // 2] *= 2.0**-39  # many numbers below the lattice
    numbers[0] = 0
    smallest = SMALLEST if bits else ZERO_BELOW
    found = choose(numbers.to(device), topk, smallest, bits)
    indices, values = strongest(numbers, topk, smallest)
    expected = quantise(values, bits) if bits else values
    same = torch.equal(found[0].cpu(), indices)
    return same and torch.equal(found[1].cpu().view(torch.int32), expected.view(torch.int32))


def choose(coefficients: Tensor, topk: int, smallest: float, bits: int) -> tuple[Tensor, Tensor]:
    """Return indices int64 and values fp32 [n, topk] of coefficients fp32 [n, block].

    `bits` is 1 or 2 for lattice values, and 0 for floats.
    """
    from aftermath.kernels import triton_blocks

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
    triton_blocks.choose[(blocks,)](
        coefficients.contiguous(),
        indices,
        values,
        size,
        least,
        **how,
        LEAST=LEAST,
        MOST=MOST,
        **triton_blocks.EXACT,
    )
    return indices, values


def _power(size: int) -> int:
    """Return the least power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
