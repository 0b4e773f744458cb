"""What the instructions cost, from the benchmark itself: no machine's speed is in these figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from programs.harness import PROGRAM, idl

ROOT = Path(__file__).parents[2]
MOST_RENT = 600_000_000
"""Lamports of a run's four accounts."""


def test_every_instruction_stays_within_its_budget() -> None:
    line = [sys.executable, ROOT / "benchmarks" / "chain.py", "--json"]
    found = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert found["members"] == [3, 32, 256]
    assert found["compute_units_goal_met"], found["compute_units"]
    assert found["push_goal_met"], found["push_bytes"]
    assert found["rent_lamports_total"] <= MOST_RENT, found["rent_lamports"]
    kept = json.loads((ROOT / "benchmarks" / "measured" / "chain.json").read_text())["figures"]
    same = ("compute_units", "account_bytes", "rent_lamports", "membership")
    assert {name: found[name] for name in same} == {name: kept[name] for name in same}, (
        "pages quote what was measured of other programs; run: python benchmarks/measure.py chain, then make docs"
    )
    measured = {name.partition(" ")[0] for name in found["compute_units"]}
    assert measured >= {instruction["name"] for instruction in idl(PROGRAM)["instructions"]}
