"""Test the distances by which an audit separates honest from dishonest results, on a tiny model."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch

from benchmarks.test_benchmarks_worth import module

audit_distance = module("measure") and module("audit_distance")
TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    """Return the figures of one round of four inner steps."""
    sizes = Namespace(sequences=2, tokens=16, micro=2, precision="fp32", compiled=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_distance, "MODEL", audit_distance.MODEL | TINY)
        patch.setattr(audit_distance, "WARM_UP_STEPS", 2)
        distances: dict[str, Any] = audit_distance.measure(
            torch.device("cpu"), "adamw", 4, "kept", sizes
        )
    return distances


def test_distance_of_repeated_round_is_zero(cases: dict[str, Any]) -> None:
    assert cases["again"]["equal"]
    assert cases["again"]["whole"] == 0
    assert cases["again"]["overlap"]["least"] == 1


def test_distance_of_smaller_micro_batch_is_rounding(cases: dict[str, Any]) -> None:
    assert 0 < cases["micro"]["whole"] < 1e-4


@pytest.mark.parametrize(
    "name", ["stale", "other_data", "skip_1", "skip_3", "skip_half", "direction"]
)
def test_distance_of_dishonest_round_exceeds_bf16(cases: dict[str, Any], name: str) -> None:
    assert cases[name]["whole"] > 3 * cases["other"]["whole"]


def test_distance_of_skipped_steps_has_no_loss_difference(cases: dict[str, Any]) -> None:
    assert cases["skip_1"]["loss"] == 0
    assert cases["stale"]["loss"] > 0
