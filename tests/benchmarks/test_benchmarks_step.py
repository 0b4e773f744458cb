"""Test that the reference loop computes what the step does, and the names of the figures."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load("step")


def test_plain_loop_equals_loss_and_gradient_of_member(step: ModuleType) -> None:
    config = config_of(step.MODEL | {"num_hidden_layers": 2})
    weights = init_weights(config, 5)
    ours = config.build(0, weights)
    plain = load("plain_loop").of_llama(weights, heads=8)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters())
    share = torch.randint(0, 260, (2, 40), generator=torch.Generator().manual_seed(1))
    losses = ours.loss(share), load("plain_loop").Loop(plain, micro_batch=2, steps=1).loss(share)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
    for loss in losses:
        loss.backward()
    expected = ours.get_parameter("model.layers.1.mlp.down_proj.weight").grad
    torch.testing.assert_close(
        plain.get_parameter("blocks.1.down.weight").grad, expected, rtol=1e-3, atol=1e-6
    )


def test_step_figures_are_medians_and_ratios(step: ModuleType) -> None:
    spent = step.Spent(lambda: 0.0)
    for what, seconds in {
        "train": (1, 9, 2),
        "encode": (0.5, 0.5, 0.5),
        "decode": (1, 1, 0.5),
        "apply": (1.5, 1, 2),
        "plain": (3, 3, 4),
    }.items():
        for each in seconds:
            spent.note(what, each)
    figures = step.figures(spent, 1200)
    assert figures["train_over_plain"] == 1.5
    assert figures["with_encode_over_plain"] == 1.2
    assert (
        figures["train_tokens_per_s"],
        figures["with_encode_tokens_per_s"],
        figures["plain_tokens_per_s"],
    ) == (
        600,
        480,
        400,
    )
    assert (figures["encode_of_step"], figures["decode_of_step"], figures["apply_of_step"]) == (
        0.1,
        0.2,
        0.3,
    )


@pytest.mark.nightly  # the tests above check its figures in this process
def test_step_benchmark_prints_its_measurement() -> None:
    small = [
        "--threads",
        "1",
        "--sequences",
        "1",
        "--micro",
        "1",
        "--repetitions",
        "1",
        "--optimizers",
        "distro",
    ]
    command = [sys.executable, BENCHMARKS / "step.py", "--json", *small]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(completed.stdout)
    assert figures["train_over_plain"] == figures["distro"]["1"]["train_over_plain"] > 0
    assert figures["precision"] == "fp32"
