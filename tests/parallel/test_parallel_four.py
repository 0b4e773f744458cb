"""Test four ranks that split the micro-batches: one slow test for each concern, and nightly tables
of all shapes.
"""

from __future__ import annotations

import pytest

from aftermath.kernels.runtime import unavailable_reason
from aftermath.parallel.group import Ranks
from parallel.rank_processes import (
    CUT,
    FOUR,
    MODELS,
    PAIR,
    SETTINGS,
    SQUARE,
    TWO,
    close_gradients,
    same_gradients,
    same_inner_rounds,
    same_results,
)

pytestmark = pytest.mark.skipif(
    unavailable_reason() is not None, reason="torch's transforms round otherwise in other batches"
)
on_four = pytest.mark.parametrize("shape", [pytest.param(FOUR, id="four", marks=pytest.mark.slow)])
on_two_and_four = pytest.mark.parametrize("shape", [TWO, FOUR], ids=["two", "four"])


@on_four
@pytest.mark.parametrize(("model", "tier"), [("uneven", 2), ("whole nanogpt", 2)])
def test_four_ranks_gradient_equals_one_rank(ranks: Ranks, model: str, tier: int) -> None:
    same_gradients(ranks, model, tier)


@on_four
def test_four_ranks_inner_rounds_equal_one_rank(ranks: Ranks) -> None:
    same_inner_rounds(ranks, "uneven", 2, "muon")


@on_four
def test_four_ranks_payloads_and_state_equal_one_rank(ranks: Ranks) -> None:
    same_results(ranks, "uneven", 1, "signs")


@pytest.mark.nightly
@on_two_and_four
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tier", [0, 2])
def test_four_ranks_gradients_of_every_model_equal_one_rank(
    ranks: Ranks, model: str, tier: int
) -> None:
    same_gradients(ranks, model, tier)


@pytest.mark.nightly
@on_two_and_four
@pytest.mark.parametrize("inner", ["adamw", "muon"])
@pytest.mark.parametrize(
    ("model", "tier"),
    [("llama", 0), ("uneven", 2), ("deepseek", 0), ("nanogpt", 0), ("whole nanogpt", 0)],
)
def test_four_ranks_three_inner_rounds_equal_one_rank(
    ranks: Ranks, model: str, tier: int, inner: str
) -> None:
    same_inner_rounds(ranks, model, tier, inner, rounds=3)


@pytest.mark.nightly
@on_two_and_four
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize(
    ("model", "tier"), [("llama", 0), ("uneven", 1), ("nanogpt", 2), ("deepseek", 0)]
)
def test_four_ranks_three_rounds_of_every_format_equal_one(
    ranks: Ranks, model: str, tier: int, kind: str
) -> None:
    same_results(ranks, model, tier, kind, rounds=3)


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [PAIR, SQUARE], ids=["pair", "square"])
@pytest.mark.parametrize("model", CUT)
@pytest.mark.parametrize("tier", range(3))
def test_tensor_parallel_gradients_of_every_model_are_close(
    ranks: Ranks, model: str, tier: int
) -> None:
    close_gradients(ranks, model, tier)
