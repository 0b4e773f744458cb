"""What a tier is said to need is what one was measured to hold."""

from __future__ import annotations

import json

import pytest

from aftermath.model.presets import PRESETS
from aftermath.optim.distro import Distro
from aftermath.optim.schema import build_schema
from aftermath.replica.footprint import footprint
from docs.test_docs import ROOT


@pytest.mark.parametrize("tier", [0, 3])
@pytest.mark.parametrize(("recompute", "figure"), [(False, "peak"), (True, "recomputed")])
def test_it_is_what_was_measured(tier: int, recompute: bool, figure: str) -> None:
    """`benchmarks/memory.py` counts a member that really trains and applies."""
    measured = json.loads((ROOT / "benchmarks/measured/memory.json").read_text())["figures"]["preset"]
    settings = Distro(8, 8, 64, quantize_1bit=True, decay=0.999, weight_decay=0.0, clip=1.0)
    found = footprint(build_schema(PRESETS["llama-20m"], 4, settings), tier, 512, recompute=recompute)
    assert found.parameters == measured["parameters"][tier]
    assert found.state == measured["state"][tier]
    assert found.state + found.activations == pytest.approx(measured[figure][tier], rel=0.01)
