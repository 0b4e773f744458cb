"""Test that the benchmark of the lab trains an arm in both ways, and judges its time."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("lab_speed")


@pytest.mark.slow
def test_lab_arm_ends_or_is_extrapolated(bench: ModuleType, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    places = bench.prepare(tmp_path, bench.TINY)
    device = torch.device("cpu")
    whole = bench.train(bench.TINY, places, device, stacked=True, seconds=300)
    cut = bench.train(bench.TINY, places, device, stacked=False, seconds=0)
    assert whole["tokens"] == cut["tokens"] == 4 * 8 * 2 * 2 * 64
    assert (whole["rounds"], cut["rounds"]) == (4, 2)
    assert cut["loss_first"] == whole["loss_first"]
    assert whole["loss_last"] < whole["loss_first"]
    assert cut["arm_s"] >= cut["first_s"] + 3 * cut["round_s"] - 0.1


@pytest.mark.parametrize(
    ("seconds", "single", "line"),
    [
        (119.9, {}, "63 M tokens in 119.9 s   bar 120   reached"),
        (
            120.1,
            {"single": {"round_s": 3.0}},
            "63 M tokens in 120.1 s   bar 120   missed   1.5 times as fast as one by one",
        ),
    ],
)
def test_lab_arm_is_held_against_its_bar(
    bench: ModuleType, seconds: float, single: dict[str, Any], line: str
) -> None:
    stacked = {"tokens": 62_914_560, "arm_s": seconds, "round_s": 2.0}
    assert bench.against_bar({"stacked": stacked} | single) == line
