"""The integer basis: its values, the bound on its column sums, and its symmetries."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP

import numpy as np
import pytest
import torch

from aftermath.optim.blocks import MAX_EDGE
from aftermath.optim.dct_basis import UnsupportedEdge, basis, integer_basis, scale_bits
from aftermath.optim.schema import Schema, SchemaError
from optim.optim_oracle import real_basis, toy_inner, toy_schema

EDGES = [1, 2, 3, 5, 8, 16, 29, 43, 64, 96]


@pytest.mark.parametrize("edge", EDGES)
def test_integer_basis_is_the_rounded_real_basis(edge: int) -> None:
    expected = [
        [int((value * 2 ** scale_bits(edge)).quantize(0, rounding=ROUND_HALF_UP)) for value in row]
        for row in real_basis(edge)
    ]
    assert [list(row) for row in integer_basis(edge)] == expected


@pytest.mark.parametrize("edge", [*EDGES, 65, 128, 250, 255, 256, 257, 512])
def test_worst_sum_of_every_column_stays_within_27_bits(edge: int) -> None:
    columns = np.abs(np.array(integer_basis(edge), dtype=np.int64)).sum(axis=0)
    assert columns.max() <= 1 << 27
    assert columns.max() > 1 << 25  # the basis leaves at most two bits of precision unused


@pytest.mark.parametrize("edge", EDGES)
def test_mirrored_columns_cancel_exactly(edge: int) -> None:
    rows = np.array(integer_basis(edge), dtype=np.int64)
    parity = np.where(np.arange(edge) % 2, -1, 1)[:, None]
    assert (rows[:, ::-1] == parity * rows).all()


@pytest.mark.parametrize("edge", EDGES)
def test_float_basis_is_orthonormal(edge: int) -> None:
    rows = basis(edge, torch.float32, torch.device("cpu")).double()
    assert torch.allclose(rows @ rows.T, torch.eye(edge, dtype=torch.float64), atol=2e-6)


@pytest.mark.parametrize("edge", [0, MAX_EDGE + 1, 65535])
def test_unsupported_edge_is_refused_with_a_fix(edge: int) -> None:
    with pytest.raises(UnsupportedEdge, match="compression_chunk of at most 255"):
        integer_basis(edge)


@pytest.mark.parametrize("make", [toy_schema, toy_inner])
def test_schema_with_unsupported_edge_is_refused(make: Callable[..., Schema]) -> None:
    with pytest.raises(SchemaError, match="edge of 2050"):
        make(vocab_size=2050, hidden_size=16, intermediate_size=16, chunk=2050, tiers=1)
