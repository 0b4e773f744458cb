"""Multiply matrices of small integers exactly, on GPUs whose half precision is much faster.

Tensor cores do not multiply fp32. So a 12-bit integer is split into two parts that fit fp16, and
the products of parts are added in fp32. The first use on a device compares them with integer ones.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
from torch import Tensor

logger = logging.getLogger(__name__)
# An integer x is 64 high + low, with |high| <= 64 and |low| <= 32 if |x| < 4096.
#
# Why sums are exact, for rows and columns shorter than 2^12 (`optim.integer_polar`) and at most
# 2^13 numbers long:
# - Sums of high * high', high * low' and low * low' are integers below 2^23 in any order. So
#   tensor cores need not keep all bits of fp32's fraction.
# - 4096 and 64 times these sums are multiples of 64 below 2^26. Their sum has at most 24 bits.
# - The whole sum is the product, an integer below 2^24.
# If a row is longer, its product with itself is at least 2^24, because rounding is monotonic. So
# the check of lengths still detects it.
_PART = 64.0
_MOST = 1 << 13  # numbers of a row
_FAST = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities whose fp16 products are at least 10 times as fast as those of fp32."""


def square(x: Tensor) -> Tensor:
    """Return X X^T of integer matrices [n, rows, columns], in fp32."""
    return square_by_parts(x) if _usable(x) else x @ x.mT


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of integer matrices [n, a, b] and [n, b, c], in fp32."""
    return product_by_parts(left, right) if _usable(left) else left @ right


def square_by_parts(x: Tensor) -> Tensor:
    """Return X X^T from products of the parts of X."""
    high, low = _parts(x)
    product = half_product(high, high.mT).mul_(_PART**2)
    across = half_product(high, low.mT)
    product.add_((across + across.mT).mul_(_PART))
    return product.add_(half_product(low, low.mT))


def product_by_parts(left: Tensor, right: Tensor) -> Tensor:
    """Return `left` @ `right` from products of their parts."""
    high, low = _parts(left)
    other_high, other_low = _parts(right)
    product = half_product(high, other_high).mul_(_PART**2)
    across = half_product(high, other_low).add_(half_product(low, other_high))
    product.add_(across.mul_(_PART))
    return product.add_(half_product(low, other_low))


def half_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of fp16 matrices, with sums in fp32."""
    return torch.bmm(left, right, out_dtype=torch.float32)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and low parts of integers, in fp16."""
    high = (x * (1 / _PART)).round_()
    return high.to(torch.float16), (x - high * _PART).to(torch.float16)


def _usable(x: Tensor) -> bool:
    return x.device.type == "cuda" and x.shape[2] <= _MOST and _works(x.device)


@lru_cache(maxsize=8)
def _works(device: torch.device) -> bool:
    """Return whether products by parts are fast and exact on the device."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(device) not in _FAST:
        return False
    try:
        if exact(device):
            return True
        reason = "are not exact"
    except Exception as error:  # an older PyTorch lacks products with another type
        reason = f"fail: {(str(error).strip() or repr(error)).splitlines()[0]}"
    logger.warning("Products in half precision on %s %s; using fp32 instead", device, reason)
    return False


def exact(device: torch.device) -> bool:
    """Return whether products by parts equal integer products, up to their bounds."""
    draws = torch.Generator().manual_seed(6)
    for rows, columns in ((48, 80), (256, 768), (128, _MOST)):
        long = 4095 / columns**0.5
        left = (torch.randn(2, rows, columns, generator=draws) * long * 0.9).round_()
        left[:, 0] = float(int(long))  # sums near 2^24, all of the same sign
        left[:, 1] = 0
        left[:, 1, ::columns] = 4095.0
        right = (torch.randn(2, columns, rows, generator=draws) * long * 0.9).round_()
        products = (
            square_by_parts(left.to(device)),
            product_by_parts(left.to(device), right.to(device)),
        )
        whole = left.double()
        expected = whole @ whole.mT, whole @ right.double()
        for sums, integers in zip(products, expected, strict=True):
            within = integers.abs() < 1 << 24
            if not torch.equal(sums.cpu().double()[within], integers[within]):
                return False
    return True
