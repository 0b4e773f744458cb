"""Approximate the polar factor of a matrix with polynomials: the Polar Express.

It only needs matrix products, which are fast on every device. Source: Amsel, Persson, Musco, Gower,
"The Polar Express" (arXiv 2505.16932), theorem 3.1 and section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

STEPS = 5
SMALLEST = 1e-3
# `polynomials` computes the coefficients. They are optimal for a given number of steps and for the
# smallest singular value (relative to the Frobenius norm) that must come near 1. Each polynomial
# maps all singular values into the interval of the next one. The margin covers rounding.
MARGIN = 1.01
# Singular values below this fraction of the largest are raised without being centred.
_CUSHION = 0.02407327424182761
_NEARLY_ONE = 1e-4  # narrower intervals (below a tenth of it) make the linear system singular

Polynomial = tuple[float, float, float]


def polar_express(
    matrices: Tensor,
    *,
    steps: int = STEPS,
    smallest: float = SMALLEST,
    precision: torch.dtype | None = None,
) -> Tensor:
    """Return nearly U V^T of every matrix [..., rows, columns] = U S V^T.

    Singular values above `smallest` times the Frobenius norm come near 1: within 0.16 for 5 steps
    and 1e-3, within 0.005 for 11 and 1e-6. A zero matrix stays zero. `precision`: dtype of the
    products, else the matrix's own.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if tall else matrices  # [..., short, long]
    largest = x.abs().amax(dim=(-2, -1), keepdim=True)
    # Squares of fp32 numbers above 1e19 or below 1e-19 leave its range.
    x = x / largest.masked_fill(largest == 0, 1)
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) * MARGIN).clamp_min(1)
    if precision is not None:
        x = _in_products(x.to(precision), polynomials(steps, smallest)).to(matrices.dtype)
        return x.mT if tall else x
    for a, b, c in polynomials(steps, smallest):
        square = x @ x.mT  # [..., short, short]
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.mT if tall else x


def _in_products(matrices: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """Apply the same polynomials to matrices [..., short, long], adding inside the products."""
    x = matrices.reshape(-1, *matrices.shape[-2:])
    for a, b, c in polynomials:
        square = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.view(matrices.shape)


@cache
def polynomials(steps: int, smallest: float) -> tuple[Polynomial, ...]:
    """Return (a, b, c) of every step's a x + b x^3 + c x^5, for singular values in [smallest, 1].

    Raises ValueError unless steps >= 1 and 0 < smallest < 1.
    """
    if steps < 1 or not 0 < smallest < 1:
        raise ValueError(
            f"a polar factor needs at least one step ({steps}) and a bound between 0 and 1 ({smallest})"
        )
    coefficients: list[Polynomial] = []
    low = smallest
    high = 1.0
    for step in range(steps):
        best = _best(max(low, _CUSHION * high), high)
        at_low = _value(best, low)
        at_high = _value(best, high)
        a, b, c = (2 / (at_low + at_high) * coefficient for coefficient in best)
        low = _value((a, b, c), low)
        high = 2 - low
        if step < steps - 1:
            # A singular value that rounding pushes beyond the end stays in the next interval.
            a, b, c = a / MARGIN, b / MARGIN**3, c / MARGIN**5
        coefficients.append((a, b, c))
    return tuple(coefficients)


def _value(polynomial: Polynomial, x: float) -> float:
    a, b, c = polynomial
    return a * x + b * x**3 + c * x**5


def _best(low: float, high: float) -> Polynomial:
    """Return the odd quintic with the least distance from 1 on [low, high], by Remez' exchange."""
    if low / high >= 1 - _NEARLY_ONE:
        return 15 / 8 / high, -10 / 8 / high**3, 3 / 8 / high**5
    inner = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
    error = np.inf
    while True:
        points = np.array([low, *inner, high])
        system = np.stack([points, points**3, points**5, [1, -1, 1, -1]], axis=1)
        a, b, c, now = np.linalg.solve(system, np.ones(4))
        if abs(now - error) <= 1e-15:
            return float(a), float(b), float(c)
        error = now
        inner = np.sqrt((-3 * b + np.array([-1, 1]) * np.sqrt(9 * b**2 - 20 * a * c)) / (10 * c))
