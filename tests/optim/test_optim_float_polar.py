"""The polar factor by polynomials, against a singular value decomposition in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from aftermath.optim.float_polar import polar_express, polynomials

EXACT = {"steps": 11, "smallest": 1e-6}


def matrix(rows: int, columns: int, condition: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a float64 matrix with singular values from 1 to 1 / condition, and its factor."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(rows, columns)
    left, right = (
        torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64))[0]
        for size in (rows, columns)
    )
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)), rank, dtype=torch.float64)
    return left * values @ right.T, left @ right.T


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("shape", [(64, 64), (256, 64), (64, 512), (1, 7), (96, 100)])
def test_enough_steps_give_the_polar_factor(shape, condition):
    input_matrix, factor = matrix(*shape, condition)
    output = polar_express(input_matrix.float(), **EXACT).double()
    values = torch.linalg.svdvals(output)
    assert (values - 1).abs().max() < 1e-3
    assert (output - factor).abs().max() < 2e-3


def test_five_steps_raise_singular_values_without_overshoot():
    input_matrix, _ = matrix(128, 128, 1e2)
    values = torch.linalg.svdvals(polar_express(input_matrix.float()))
    assert 0.87 < values.min() < values.max() < 1.13
    tiny, _ = matrix(128, 128, 1e6)
    assert torch.linalg.svdvals(polar_express(tiny.float())).max() < 1.13


def test_polar_express_ignores_scale_and_orientation():
    input_matrix, _ = matrix(40, 24, 1e3)
    output = polar_express(input_matrix)
    assert torch.allclose(polar_express(input_matrix * 1e-12), output)
    assert torch.allclose(polar_express(input_matrix * 1e12), output)
    assert torch.equal(polar_express(input_matrix.T), output.T)
    many = polar_express(torch.stack([input_matrix, 2 * input_matrix, input_matrix.flip(0)]))
    assert torch.allclose(many[1], output)
    assert torch.allclose(many[2], output.flip(0))


@pytest.mark.parametrize("exponent", [-44, -38, -30, -23, -20, 19, 25, 38])
def test_polar_express_handles_all_fp32_magnitudes(exponent):
    """Squares of these numbers overflow or underflow. Subnormal numbers have few digits."""
    input_matrix = matrix(40, 24, 1e2)[0].double()
    input_matrix = (input_matrix / input_matrix.abs().max() * 10.0**exponent).float()
    expected = polar_express(input_matrix.double())
    assert torch.allclose(polar_express(input_matrix).double(), expected, atol=1e-4)
    assert torch.linalg.svdvals(expected).max() < 1.25


@pytest.mark.parametrize(("steps", "smallest", "within"), [(5, 1e-3, 0.16), (11, 1e-6, 0.005)])
def test_polar_express_error_is_within_its_stated_bound(steps, smallest, within):
    small = torch.logspace(math.log10(smallest), -0.5, 400, dtype=torch.float64)
    # [400, 2, 2] of Frobenius norm 1
    input_matrix = torch.diag_embed(torch.stack([(1 - small**2).sqrt(), small], dim=1))
    values = torch.linalg.svdvals(polar_express(input_matrix, steps=steps, smallest=smallest))
    assert 0.9 * within < (values - 1).abs().max() < within


def test_polar_express_of_zero_is_zero():
    assert torch.equal(polar_express(torch.zeros(8, 4)), torch.zeros(8, 4))


# an interval so narrow that the exchange once never ended
@example(steps=9, exponent=-0.7977203364979895)
@given(steps=st.integers(1, 12), exponent=st.floats(-7, -0.01))
def test_each_polynomial_maps_its_interval_into_the_next(steps, exponent):
    """Values in [smallest, 1] stay positive and below 2 in every step, and the last interval is the
    narrowest.
    """
    smallest = 10.0**exponent
    x = torch.logspace(exponent, 0, 2001, dtype=torch.float64)
    for a, b, c in polynomials(steps, smallest):
        x = x.double()
        x = a * x + b * x**3 + c * x**5
        assert x.min() > 0
        assert x.max() < 2
    assert x.max() - 1 <= 1 - x.min() + 1e-9


def test_first_polynomial_equals_the_published_one():
    """The coefficients for 1e-3 are from the table in the paper's code, before its margin."""
    published = (8.28721201814563, -23.595886519098837, 17.300387312530933)
    a, b, c = polynomials(8, 1e-3)[0]
    assert (a * 1.01, b * 1.01**3, c * 1.01**5) == pytest.approx(published, rel=1e-6)


@pytest.mark.parametrize(("steps", "smallest"), [(0, 1e-3), (5, 0.0), (5, 1.0), (5, -1.0)])
def test_polynomials_with_invalid_bounds_are_refused(steps, smallest):
    with pytest.raises(ValueError, match="a polar factor needs"):
        polynomials(steps, smallest)
