"""The exact polar factor: its accuracy, equal bits for any order of sums, and the bounds of its
proof.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from aftermath.optim import compiled_sparse, integer_polar
from aftermath.optim.float_polar import polar_express, polynomials
from aftermath.optim.integer_polar import POLYNOMIALS, exact_polar

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 5), (64, 64), (192, 64), (64, 192), (33, 130)]
SMALLEST = 0.005


def _matrix(shape: tuple[int, int], seed: int, condition: float = 30.0) -> Tensor:
    """Return a matrix with singular values from 1 to 1 / condition."""
    generator = torch.Generator().manual_seed(seed)
    u, _, v = torch.linalg.svd(
        torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False
    )
    values = torch.logspace(0, -math.log10(condition), min(shape), dtype=torch.float64)
    return (u * values @ v).float()


def test_polynomials_are_the_rounded_polar_express() -> None:
    for ours, best in zip(POLYNOMIALS, polynomials(len(POLYNOMIALS), SMALLEST), strict=True):
        assert ours == tuple(round(coefficient, 4) for coefficient in best)


def test_polynomials_keep_singular_values_within_units() -> None:
    """The largest values of X and P in their units stay below the length bound, with room for
    noise.
    """
    high = 1.0
    for (a, b, c), squares, factors in zip(
        POLYNOMIALS, integer_polar._SQUARES, integer_polar._FACTORS, strict=True
    ):
        x = np.linspace(0, high, 200_001)
        factor = a + b * x**2 + c * x**4
        assert high**2 * squares < 4095
        assert np.abs(factor).max() * factors < 4095
        high = float((x * factor).max())
        assert high * integer_polar._UNITS < 4095


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_polar_is_near_the_polar_factor(shape: tuple[int, int]) -> None:
    matrix = _matrix(shape, 1)
    u, _, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    factor = exact_polar(matrix)
    assert factor.shape == matrix.shape
    values = torch.linalg.svdvals(factor)
    assert 0.87 < values.min() <= values.max() < 1.13
    assert torch.linalg.matrix_norm(factor - u @ v, 2) < 0.14
    assert torch.allclose(
        factor.double(), polar_express(matrix.double(), steps=11, smallest=1e-6), atol=0.13
    )


@pytest.mark.parametrize("shape", [(320, 896), (512, 512)])
@pytest.mark.parametrize("largest", [1, 30])
def test_large_matrices_stay_within_the_bounds(shape: tuple[int, int], largest: int) -> None:
    """One direction may dominate all others, as in gradients."""
    u, _, v = torch.linalg.svd(_matrix(shape, 4), full_matrices=False)
    strengths = torch.ones(min(shape))
    strengths[0] = largest
    singular_values = torch.linalg.svdvals(exact_polar(u * strengths @ v))
    assert 0.85 < singular_values.min() <= singular_values.max() < 1.15


@pytest.mark.parametrize("shape", [(16, 1024), (8, 4096), (4096, 8), (4, 16384)])
def test_equal_magnitudes_stay_within_the_bounds(shape: tuple[int, int]) -> None:
    """All numbers round in the same direction. As powers of two, rows would exceed the length
    bound.
    """
    singular_values = torch.linalg.svdvals(exact_polar(_matrix(shape, 6).sign()))
    assert 0.85 < singular_values.min() <= singular_values.max() < 1.15


@pytest.mark.parametrize("shape", [(64, 64), (256, 256), (384, 384), (704, 256), (128, 2048)])
@pytest.mark.parametrize("noise", [0, 0.01])
def test_matrices_of_few_distinct_numbers_stay_bounded(
    shape: tuple[int, int], noise: float
) -> None:
    """Matrices of ones, and of a few directions of +1 and -1, would all round in the same
    direction.
    """
    generator = torch.Generator().manual_seed(7)
    for count in range(4):
        u = torch.randn(shape[0], count + 1, generator=generator).sign()
        v = torch.randn(count + 1, shape[1], generator=generator).sign()
        strengths = torch.exp(-4 * torch.rand(count + 1, generator=generator))
        made_up = (u * strengths) @ v if count else torch.ones(shape)
        singular_values = torch.linalg.svdvals(
            exact_polar(made_up + noise * torch.randn(shape, generator=generator))
        )
        assert 0.85 < singular_values.max() < 1.13


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_polar_equals_unbounded_integers(shape: tuple[int, int]) -> None:
    """Repeat all products in unbounded integers, and the rest in single fp32 operations."""
    matrix = _matrix(shape, 2, 1e4)
    tall = shape[0] > shape[1]
    x = _start(matrix.mT if tall else matrix)
    for step, (a, b, c) in enumerate(POLYNOMIALS):
        squares = integer_polar._SQUARES[step]
        factors = integer_polar._FACTORS[step]
        square = _floats(x.dot(x.T))
        if step == 0:
            near = _integers(square * np.float32(2.0**-13))
            length = (math.isqrt(sum((abs(q) + 1) ** 2 for q in near.flatten())) + 1) * 2.0**13
            scale = squares / length
            back = 2000 / (factors * math.sqrt(length))
        else:
            scale = squares / 2000**2
            back = 1 / factors if step < 3 else 1 / (factors * 2000)
        own = _integers(square * np.float32(scale) + _offsets(square, f"B{step}", f"B{step} row"))
        fourth = _floats(own.dot(own)) * np.float32(c * factors / squares**2)
        factor = fourth + _floats(own) * np.float32(b * factors / squares)
        factor = _integers(factor + _offsets(factor, f"P{step}", f"P{step} row"))
        factor = factor + np.diag([round(a * factors)] * len(factor)).astype(object)
        y = _floats(factor.dot(x)) * np.float32(back)
        x = _integers(y + _offsets(y, f"X{step}", f"X{step} column"))
    expected = y.T if tall else y
    assert exact_polar(matrix).tolist() == expected.tolist()


def _offsets(like: NDArray[np.float32], name: str, columns: str) -> NDArray[np.float32]:
    """Return bits 16 to 31 of products of two 24-bit numbers, as a fraction minus a half."""

    def drawn(name: str, count: int) -> list[int]:
        stream = hashlib.shake_128(f"aftermath polar {name}".encode()).digest(3 * count)
        return [
            stream[3 * i] + 256 * stream[3 * i + 1] + 65536 * stream[3 * i + 2]
            for i in range(count)
        ]

    rows = drawn(f"{name} row", like.shape[0])
    wide = drawn(columns, like.shape[1])
    return np.array(
        [[(r * c // 65536 % 65536) / 65536 - 0.5 for c in wide] for r in rows], np.float32
    )


def _start(matrix: Tensor) -> NDArray[np.object_]:
    """Return the integers from which the iteration starts."""
    values = matrix.tolist()
    exponent = 11 - math.frexp(max(abs(v) for row in values for v in row))[1]
    near = [[abs(round(Fraction(v) * Fraction(2) ** exponent)) + 1 for v in row] for row in values]
    longest = max(sum(q * q for q in line) for line in [*near, *zip(*near, strict=True)])
    scale = np.float32(integer_polar._first_length(max(matrix.shape)) / (math.isqrt(longest) + 1))
    return _integers(matrix.numpy() * np.float32(2.0**exponent) * scale)


def _integers(values: NDArray[np.float32]) -> NDArray[np.object_]:
    return np.vectorize(lambda v: round(float(v)), otypes=[object])(values)


def _floats(integers: NDArray[np.object_]) -> NDArray[np.float32]:
    """Return these numbers in fp32, which must hold them exactly."""
    floats = integers.astype(np.float32)
    assert (floats.astype(np.int64) == integers).all()
    return floats


def _in_another_order(patch: pytest.MonkeyPatch) -> None:
    """Make all later products sum in a random order."""
    plain = torch.Tensor.__matmul__

    def product(left: Tensor, right: Tensor) -> Tensor:
        order = torch.randperm(left.shape[-1])
        return plain(left[..., order], right[..., order, :])

    patch.setattr(torch.Tensor, "__matmul__", product)


def _with_torch(patch: pytest.MonkeyPatch) -> None:
    """Compute polar factors without compiled kernels."""
    patch.setattr(compiled_sparse, "works", lambda: False)


@pytest.mark.parametrize("kind", ["noise", "zeros", "ones", "rank 1", "huge", "signs"])
@pytest.mark.parametrize("shape", [(9, 3, 5), (2, 130, 63), (2, 1, 7), (3, 64, 192)])
def test_compiled_polar_equals_torch(shape: tuple[int, ...], kind: str) -> None:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(11))
    matrices = {
        "noise": noise,
        "zeros": torch.zeros(shape),
        "ones": torch.ones(shape),
        "rank 1": noise[:, :1].expand(shape) * 1e-30,
        "huge": noise * 1e25,
        "signs": noise.sign(),
    }[kind]
    factor = exact_polar(matrices)
    with pytest.MonkeyPatch.context() as patch:
        _with_torch(patch)
        patch.setattr(integer_polar, "_AT_ONCE", 2 * shape[1] * shape[2])
        expected = exact_polar(matrices)
    assert torch.equal(factor.view(torch.int32), expected.view(torch.int32))


def test_exact_polar_ignores_the_order_of_sums() -> None:
    """Sums are exact for any number of threads, with other strides, or transposed."""
    for shape in [(192, 64), (64, 192), (130, 131)]:
        matrix = _matrix(shape, 3, 1e3)
        torch.set_num_threads(1)
        expected = exact_polar(matrix)
        strided = torch.zeros(2 * shape[0], 3 * shape[1])[::2, ::3]
        strided.copy_(matrix)
        assert torch.equal(exact_polar(strided), expected)
        torch.set_num_threads(2)
        assert torch.equal(exact_polar(matrix), expected)
        torch.set_num_threads(1)
        with pytest.MonkeyPatch.context() as patch:
            _with_torch(patch)
            _in_another_order(patch)
            for _ in range(3):
                assert torch.equal(exact_polar(matrix), expected)
        if shape[0] != shape[1]:
            assert torch.equal(exact_polar(matrix.mT), expected.mT)


def test_batched_matrices_equal_separate_ones() -> None:
    """The batch also has a matrix that leaves the bounds, and one of zeros."""
    matrices = torch.stack([_matrix((20, 50), seed) * 10.0**seed for seed in range(4)])
    matrices[1] = 0
    matrices[2, 1:, 1:] = 0
    assert torch.equal(
        exact_polar(matrices), torch.stack([exact_polar(matrix) for matrix in matrices])
    )


@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(-149, 120),
    st.integers(0, 40),
)
def test_partial_sums_stay_exact_in_fp32(
    seed: int, rows: int, columns: int, exponent: int, spread: int
) -> None:
    """The largest partial sum is bounded by the sum of magnitudes, for any finite matrix."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-spread, 1, (rows, columns), generator=generator)
    matrix = (
        torch.randn(rows, columns, generator=generator) * torch.exp2(powers.float()) * 2.0**exponent
    )
    largest = 0.0
    plain = torch.Tensor.__matmul__

    def watched(left: Tensor, right: Tensor) -> Tensor:
        nonlocal largest
        assert torch.equal(left, left.round())
        assert torch.equal(right, right.round())
        largest = max(largest, float(plain(left.abs().double(), right.abs().double()).max()))
        return plain(left, right)

    from_kernels = exact_polar(matrix)
    with pytest.MonkeyPatch.context() as patch:
        _with_torch(patch)
        patch.setattr(torch.Tensor, "__matmul__", watched)
        factor = exact_polar(matrix)
    assert torch.equal(from_kernels.view(torch.int32), factor.view(torch.int32))
    assert largest < 2.0**24
    assert largest > 0 or not matrix.any()
    assert bool(factor.isfinite().all())
    assert torch.linalg.matrix_norm(factor, 2) < 1.2


@pytest.mark.parametrize("units", [6000, 200_000])
def test_out_of_bounds_is_detected_in_every_sum_order(
    units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units are too fine for fp32. The matrix keeps the result of its last good step in any
    order of sums.
    """
    monkeypatch.setattr(integer_polar, "_UNITS", units)
    matrix = _matrix((60, 70), 5)
    expected = exact_polar(matrix)
    assert bool(expected.isfinite().all())
    assert torch.linalg.svdvals(expected).min() < 0.8
    _with_torch(monkeypatch)
    _in_another_order(monkeypatch)
    for _ in range(5):
        assert torch.equal(exact_polar(matrix), expected)


@pytest.mark.parametrize("value", [2.0**-149, 1e-38, 1.0, 3.4e38])
def test_exact_polar_of_a_number_is_its_sign(value: float) -> None:
    factor = exact_polar(torch.tensor([[value, 0.0], [0.0, -value]]))
    assert 0.8 < factor[0, 0] < 1.2
    assert 0.8 < -factor[1, 1] < 1.2
    assert factor[0, 1] == factor[1, 0] == 0


@pytest.mark.parametrize(
    ("shape", "rank", "noise", "part"),
    [
        ((64, 64), 1, 0.15, (0.4, 0.6)),
        ((64, 64), 32, 0.15, (0.03, 0.07)),
        ((256, 1024), 1, 0.35, (2.5, 3.5)),
        ((256, 1024), 128, 0.35, (0.15, 0.25)),
    ],
)
def test_polar_singular_values_of_low_rank_input(
    shape: tuple[int, int], rank: int, noise: float, part: tuple[float, float]
) -> None:
    """See `exact_polar`: noise is small in each direction, but large over many directions."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape[0], rank, generator=generator) @ torch.randn(
        rank, shape[1], generator=generator
    )
    u, _, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    u, v, factor = u[:, :rank], v[:rank], exact_polar(matrix).double()
    own = u.T @ factor @ v.T
    values = torch.linalg.svdvals(own)
    rest = factor - u @ own @ v
    assert 0.87 < values.min() <= values.max() < 1.13
    assert torch.linalg.svdvals(rest).max() < noise
    assert part[0] < torch.linalg.matrix_norm(rest) / torch.linalg.matrix_norm(own) < part[1]


def test_exact_polar_of_zero_is_zero() -> None:
    assert torch.equal(exact_polar(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_exact_polar_has_no_negative_zero() -> None:
    """Holds for any matrix, even if all products of a sum are -0."""
    factor = exact_polar(torch.tensor([[-1.0, 0.0, -0.0], [-0.0, -0.0, 0.0], [0.0, -2.0, -0.0]]))
    assert not bool(torch.signbit(factor[factor == 0]).any())
