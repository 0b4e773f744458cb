"""Compute units, account sizes and rent, as the benchmark measures them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from programs.harness import PROGRAM, idl

CHAIN = Path(__file__).parents[2] / "benchmarks" / "chain.py"
KEPT = json.loads((CHAIN.parent / "measured" / "chain.json").read_text())["figures"]
STALE = "the programs changed since they were measured; run: python benchmarks/measure.py chain, then make docs"
MOST_RENT = 630_000_000
"""Lamports of a run's four accounts."""


def test_costs_of_three_members_equal_measurement() -> None:
    spec = importlib.util.spec_from_file_location("benchmark_chain", CHAIN)
    assert spec is not None
    assert spec.loader is not None
    chain: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chain)
    costs = chain.measure(3)
    assert costs["units"] == {
        name: units[0] for name, units in KEPT["compute_units"].items() if units[0]
    }, STALE
    for figure, name in (
        ("accounts", "account_bytes"),
        ("rent_lamports",) * 2,
        ("membership",) * 2,
    ):
        assert costs[figure] == KEPT[name], STALE
    assert max(max(pushed.values()) for pushed in costs["push"].values()) <= chain.GOAL_PUSH


@pytest.mark.slow
def test_costs_of_up_to_256_members_are_within_budget() -> None:
    line = [sys.executable, CHAIN, "--json"]
    costs = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert costs["members"] == [3, 32, 256]
    assert costs["compute_units_goal_met"], costs["compute_units"]
    assert costs["push_goal_met"], costs["push_bytes"]
    assert costs["rent_lamports_total"] <= MOST_RENT, costs["rent_lamports"]
    same = ("compute_units", "account_bytes", "rent_lamports", "membership")
    assert {name: costs[name] for name in same} == {name: KEPT[name] for name in same}, STALE
    measured = {name.partition(" ")[0] for name in costs["compute_units"]}
    assert measured >= {instruction["name"] for instruction in idl(PROGRAM)["instructions"]}
