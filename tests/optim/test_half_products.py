"""Test that products by parts equal integer products, and that devices prove it before use."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from aftermath.optim import half_products
from aftermath.optim.integer_polar import exact_polar

CPU = torch.device("cpu")


@pytest.fixture
def half_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply fp16 matrices in fp32, as a GPU does."""
    monkeypatch.setattr(half_products, "half_product", lambda a, b: a.float() @ b.float())


@pytest.mark.usefixtures("half_on_cpu")
def test_products_by_parts_equal_integer_products() -> None:
    assert half_products.exact(CPU)


@pytest.mark.usefixtures("half_on_cpu")
@pytest.mark.parametrize("shape", [(3, 33, 130), (2, 64, 64), (2, 1, 7)])
def test_polar_factor_by_parts_keeps_its_bits(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int]
) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    matrices[0, 0] = 0  # the rest of a matrix may still be large
    matrices[-1] *= 1e-30
    expected = exact_polar(matrices)
    monkeypatch.setattr(half_products, "square", half_products.square_by_parts)
    monkeypatch.setattr(half_products, "product", half_products.product_by_parts)
    assert torch.equal(exact_polar(matrices).view(torch.int32), expected.view(torch.int32))


@pytest.mark.usefixtures("half_on_cpu")
@pytest.mark.parametrize("excess", [0, 1, 5000, 1 << 20])
def test_long_row_exceeds_bounds_by_parts(excess: int) -> None:
    row = torch.full((1, 1, 4), 2048.0)
    row[0, 0, 0] += excess
    assert half_products.square_by_parts(row).item() >= 1 << 24


def rounded(left: Tensor, right: Tensor) -> Tensor:
    return (left.float() @ right.float()).half().float()


def missing(left: Tensor, right: Tensor) -> Tensor:
    raise TypeError("bmm() got an unexpected keyword argument 'out_dtype'")


@pytest.mark.parametrize(
    ("unfit", "reason"), [(rounded, "are not exact"), (missing, "fail: bmm() got an unexpected")]
)
def test_device_with_rounded_half_products_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unfit: object, reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(half_products, "half_product", unfit)
    half_products._works.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not half_products._works(CPU)
    assert reason in caplog.messages[0]
    half_products._works.cache_clear()
