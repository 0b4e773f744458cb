"""Test the computed memory of a member, which does not depend on the machine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from aftermath.config.document import RunConfig, parse_as
from aftermath.optim.run_schema import agreed_schema
from aftermath.replica.tier_memory import least_bytes, state_bytes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def memory() -> ModuleType:
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("benchmark_memory", BENCHMARKS / "memory.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The fast tests compare the figures with what the client computes.
@pytest.mark.nightly
@pytest.mark.parametrize("model", ["light", "preset"])
def test_measured_memory_is_current(memory: ModuleType, model: str) -> None:
    measured = json.loads((BENCHMARKS / "measured" / "memory.json").read_text())["figures"][model]
    for name, value in memory.of_tier(model, 2).items():
        assert value == pytest.approx(measured[name][2], rel=0.02), (
            f"run: python benchmarks/memory.py --json ({name})"
        )


@pytest.mark.nightly  # half a minute of CPU
def test_peak_memory_grows_equally_per_layer(memory: ModuleType) -> None:
    (_, one), (_, two), (_, three) = (memory.peak("test", 3, layers) for layers in (1, 2, 3))
    assert three == one + 2 * (two - one)


def test_live_bytes_are_counted_once_until_freed(memory: ModuleType) -> None:
    with memory.LiveBytes() as live:
        first = torch.zeros(1000)
        view = first.view(10, 100)
        second = view + 1
        del first, view
        torch.zeros(2500)
        assert live.now == second.nbytes == 4000
    assert live.peak == 4000 + 10_000


@pytest.mark.parametrize("model", ["light", "preset", "test"])
def test_computed_memory_is_near_measurement(memory: ModuleType, model: str) -> None:
    """`doctor` and `--matformer-tier auto` choose the tier by this figure."""
    config = parse_as(
        (memory.ROOT / "config" / "solana-test" / memory.CONFIGS[model]).read_text(),
        model,
        RunConfig,
    )
    schema = agreed_schema(memory.document_of(model), memory.TIERS, config.llm.optimizer.settings)
    length = memory.PRESET_TOKENS if model == "preset" else config.llm.max_seq_len
    counted = json.loads((BENCHMARKS / "measured" / "memory.json").read_text())["figures"][model]
    for tier in range(memory.TIERS):
        assert state_bytes(schema, tier) == counted["state"][tier]
        computed = least_bytes(schema, tier, length, memory.MEMBERS[model])
        assert computed == pytest.approx(counted["recomputed"][tier], rel=0.05)
