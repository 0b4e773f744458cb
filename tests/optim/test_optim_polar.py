"""The exact polar factor: near the true one, the same bits whatever the sums' order, within the bounds of its proof."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aftermath.optim import polar
from aftermath.optim.orthogonal import polar_express, polynomials
from aftermath.optim.polar import COEFFICIENT_BITS, FRACTION_BITS, POLYNOMIALS, exact_polar

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 5), (64, 64), (192, 64), (64, 192), (33, 130)]


def _matrix(shape: tuple[int, int], seed: int, condition: float = 30.0) -> Tensor:
    """With singular values from 1 down to 1 / condition."""
    generator = torch.Generator().manual_seed(seed)
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    values = torch.logspace(0, -math.log10(condition), min(shape), dtype=torch.float64)
    return (u * values @ v).float()


def test_the_polynomials_are_the_polar_express_rounded() -> None:
    for ours, best in zip(POLYNOMIALS, polynomials(len(POLYNOMIALS), 1e-3), strict=True):
        assert ours == tuple(round(coefficient * 2**COEFFICIENT_BITS) for coefficient in best)


def test_the_polynomials_keep_every_singular_value_within_what_the_proof_takes() -> None:
    """Also from a little outside, as rounding may leave it; and the largest factor of P is what is said."""
    low, high = 0.0, 1.0
    for number, polynomial in enumerate(POLYNOMIALS):
        a, b, c = (coefficient / 2**COEFFICIENT_BITS for coefficient in polynomial)
        x = np.linspace(low, high + 2e-4, 200_001)
        factor = a + b * x**2 + c * x**4
        assert np.abs(factor).max() * high < (8.22 if number == 0 else 4.07 * 2.02)
        assert (x * factor).min() >= low
        low, high = 0.0, float((x * factor).max())
        assert high < 2.02


@pytest.mark.parametrize("shape", SHAPES)
def test_is_near_the_polar_factor(shape: tuple[int, int]) -> None:
    matrix = _matrix(shape, 1)
    u, _, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    found = exact_polar(matrix)
    assert found.shape == matrix.shape
    values = torch.linalg.svdvals(found)
    assert 0.83 < values.min() <= values.max() < 1.17
    assert torch.linalg.matrix_norm(found - u @ v, 2) < 0.17
    assert torch.allclose(found, polar_express(matrix.double()), atol=5e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_whole_numbers(shape: tuple[int, int]) -> None:
    """Every operation once more in unbounded integers, rounded halves to even."""
    matrix = _matrix(shape, 2, 1e4)
    tall = shape[0] > shape[1]
    given = (matrix.mT if tall else matrix).double()
    exponent = math.frexp(float(given.abs().max()))[1]
    near = [[round(v * 2.0 ** (17 - exponent)) for v in row] for row in given.tolist()]
    norm = math.isqrt(sum((abs(q) + 1) ** 2 for row in near for q in row)) + 1
    scale = 2.0**FRACTION_BITS / (norm * 1.01)
    scaled = [
        [round(float(Fraction(v) * Fraction(2) ** (17 - exponent)) * scale) for v in row] for row in given.tolist()
    ]
    x = np.array(scaled, dtype=object)
    for a, b, c in POLYNOMIALS:
        square = _rounded(x.dot(x.T), FRACTION_BITS)
        p = _rounded(b * square + c * _rounded(square.dot(square), FRACTION_BITS), COEFFICIENT_BITS)
        p = p + np.diag([a << FRACTION_BITS - COEFFICIENT_BITS] * len(p)).astype(object)
        x = _rounded(p.dot(x), FRACTION_BITS)
    expected = (x.T if tall else x).astype(np.float64) * 2.0**-FRACTION_BITS
    assert exact_polar(matrix).tolist() == expected.tolist()


def _rounded(integers: np.ndarray, bits: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.vectorize(lambda v: round(Fraction(int(v), 2**bits)), otypes=[object])(integers)


def test_no_order_of_the_sums_shows() -> None:
    """Threads, strides and transposition; and rows and columns in another order give them in that order."""
    for shape in [(192, 64), (64, 192), (130, 131)]:
        matrix = _matrix(shape, 3, 1e3)
        torch.set_num_threads(1)
        expected = exact_polar(matrix)
        strided = torch.zeros(2 * shape[0], 3 * shape[1])[::2, ::3]
        strided.copy_(matrix)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(exact_polar(matrix), expected)
            assert torch.equal(exact_polar(strided), expected)
        rows, columns = torch.randperm(shape[0]), torch.randperm(shape[1])
        assert torch.equal(exact_polar(matrix[rows][:, columns]), expected[rows][:, columns])
        if shape[0] != shape[1]:
            assert torch.equal(exact_polar(matrix.mT), expected.mT)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 40), st.integers(-149, 120), st.integers(0, 40))
def test_no_sum_leaves_what_float64_holds(seed: int, rows: int, columns: int, exponent: int, spread: int) -> None:
    """Of any finite matrix: the largest part of any sum is that of the magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-spread, 1, (rows, columns), generator=generator)
    matrix = torch.randn(rows, columns, generator=generator) * torch.exp2(powers.float()) * 2.0**exponent
    largest = 0.0
    plain = torch.matmul

    def watched(left: Tensor, right: Tensor) -> Tensor:
        nonlocal largest
        assert torch.equal(left, left.round())
        assert torch.equal(right, right.round())
        largest = max(largest, float(plain(left.abs(), right.abs()).max()))
        return plain(left, right)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polar.torch, "matmul", watched)  # type: ignore[attr-defined]
        found = exact_polar(matrix)
    assert largest < 2.0**51
    assert bool(found.isfinite().all())
    assert torch.linalg.matrix_norm(found, 2) < 1.2


@pytest.mark.parametrize("value", [2.0**-149, 1e-38, 1.0, 3.4e38])
def test_any_finite_number_has_its_sign(value: float) -> None:
    found = exact_polar(torch.tensor([[value, 0.0], [0.0, -value]]))
    assert found[0, 0] == -found[1, 1]
    assert 0.8 < found[0, 0] < 1.2
    assert found[0, 1] == found[1, 0] == 0


def test_zeros_stay() -> None:
    assert torch.equal(exact_polar(torch.zeros(3, 5)), torch.zeros(3, 5, dtype=torch.float64))


def test_a_matrix_beyond_the_proof_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polar, "LARGEST_MATRIX", 14)
    with pytest.raises(ValueError, match="15 entries"):
        exact_polar(torch.zeros(3, 5))


def test_a_zero_has_one_sign() -> None:
    """Of any matrix, also where all products of a sum are -0."""
    found = exact_polar(torch.tensor([[-1.0, 0.0, -0.0], [-0.0, -0.0, 0.0], [0.0, -2.0, -0.0]]))
    assert not bool(torch.signbit(found[found == 0]).any())
