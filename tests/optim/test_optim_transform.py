"""The DCT, the cut into blocks, and the choice of coefficients."""

from __future__ import annotations

import math

import pytest
import torch

from aftermath.model.levels import Segment
from aftermath.optim.blocks import UNUSED, Blocks
from aftermath.optim.transform import cells, forward, inverse, padding, strongest
from optim.optim_oracle import cut_blocks


@pytest.mark.parametrize("shape", [(5, 64, 64), (3, 1, 64), (4, 43, 29), (7, 1, 1), (2, 8, 1)])
def test_inverse_undoes_forward_and_keeps_the_norm(shape: tuple[int, ...]) -> None:
    blocks = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    coefficients = forward(blocks)
    assert torch.allclose(inverse(coefficients), blocks, atol=1e-5)
    assert torch.allclose(coefficients.norm(), blocks.norm(), rtol=1e-5)


def test_constant_block_has_only_the_first_coefficient() -> None:
    coefficients = forward(torch.full((1, 8, 16), 2.0))
    assert coefficients[0, 0, 0] == pytest.approx(2.0 * (8 * 16) ** 0.5, rel=1e-6)
    coefficients[0, 0, 0] = 0
    assert coefficients.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [
        *[
            ((4, 6), (2, 3)),
            ((5, 7), (2, 3)),
            ((4, 7), (2, 3)),
            ((2, 3), (5, 4)),
            ((7,), (3,)),
            ((6,), (3,)),
        ],
        *[
            ((3, 4, 6), (1, 2, 3)),
            ((3, 5, 7), (1, 2, 3)),
            ((2, 2, 3, 4), (1, 1, 2, 3)),
            ((5, 1, 4), (1, 1, 4)),
        ],
    ],
)
def test_cells_match_blocks_to_strided_tensors(
    shape: tuple[int, ...], chunk: tuple[int, ...]
) -> None:
    cut = Blocks(Segment("w", 0, None, 0, shape[0], shape), chunk, 1)
    tensor = torch.arange(1.0, 101.0).view(10, 10)[: shape[0], 3 : 3 + shape[-1]]
    if len(shape) == 1:
        tensor = torch.arange(1.0, 101.0)[::7][: shape[0]]
    if len(shape) > 2:  # a strided stack: only the joined leading dimensions are contiguous
        tensor = torch.arange(1.0, 1 + math.prod(shape[:-1]) * 9).view(*shape[:-1], 9)[
            ..., : shape[-1]
        ]
    blocks = torch.zeros(cut.count, *(1, *chunk)[-2:])
    for numbers, places in cells(tensor, blocks, cut):
        places.copy_(numbers)
    assert blocks.tolist() == cut_blocks(tensor.numpy(), cut).tolist()
    assert not any(beyond.any() for beyond in padding(blocks, cut))
    for beyond in padding(blocks, cut):
        beyond.fill_(-1.0)
    assert int((blocks == -1).sum()) == cut.count * cut.size - cut.segment.numel
    for numbers, places in cells(tensor, blocks, cut):
        numbers.sub_(places)
    assert not tensor.any()


def test_strongest_prefers_lower_indices_among_equals() -> None:
    rows = torch.tensor([[1.0, -2.0, 2.0, 2.0, -2.0, 0.5], [3.0, 1.0, -1.0, 1.0, 1.0, -1.0]])
    indices, values = strongest(rows, 3)
    assert indices.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert values.tolist() == [[-2.0, 2.0, 2.0], [3.0, 1.0, -1.0]]


def test_strongest_never_keeps_zeros() -> None:
    rows = torch.tensor(
        [[0.0, -0.0, 5.0, 0.0], [0.0] * 4, [1e-40, -1.0, 1e-40, 2.0], [-1.0, 3.0, -2.0, 4.0]]
    )
    for topk in (3, 4):
        indices, values = strongest(rows, topk)
        pad = topk - 1
        assert indices[:3].tolist() == [
            [2] + [UNUSED] * pad,
            [UNUSED] * topk,
            [1, 3] + [UNUSED] * (pad - 1),
        ]
        assert values[:3].tolist() == [
            [5.0] + [0.0] * pad,
            [0.0] * topk,
            [-1.0, 2.0] + [0.0] * (pad - 1),
        ]
        assert indices[3].tolist() == [0, 1, 2, 3][-topk:]
        assert values[3].tolist() == [-1.0, 3.0, -2.0, 4.0][-topk:]


@pytest.mark.parametrize("levels", [3, 50])
def test_strongest_equals_a_stable_sort(levels: int) -> None:
    """Coarse values make ties at the limit common."""
    rows = torch.randint(
        -levels, levels + 1, (64, 100), generator=torch.Generator().manual_seed(levels)
    ).float()
    indices, values = strongest(rows, 8)
    expected = (
        rows.abs().sort(dim=1, descending=True, stable=True).indices[:, :8].sort(dim=1).values
    )
    assert torch.equal(indices, expected)
    assert torch.equal(values, rows.gather(1, expected))
