"""What an owner is warned of before a run begins."""

from __future__ import annotations

import pytest

from aftermath.optim.schema import build_schema
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.owner.schema import Shape
from aftermath.owner.troubles import trouble_with_size
from optim.optim_oracle import CONFIG


@pytest.mark.parametrize(
    ("width", "topk", "large"),
    [
        (256, 4096, False),  # all of a model of millions of parameters is not much
        (2048, 512, True),
        (2048, 16, False),
    ],
)
def test_results_that_would_be_a_burden_are_told(width: int, topk: int, large: bool) -> None:
    config = CONFIG | {"hidden_size": width, "intermediate_size": 3 * width, "vocab_size": 512}
    shape = Shape(build_schema(config, 1, SparseLoCo(topk=topk, topk_embeddings=topk)))
    said = trouble_with_size(shape)
    assert bool(said) == large
    if large:
        assert f"sends {shape.bytes_per_round[0]:,} bytes in every round to every other" in said
        assert "raise compression_chunk" in said
