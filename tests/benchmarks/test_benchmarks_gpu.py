"""Test `make gpu-check` without a GPU: it reports that, and its bit comparison works."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from replica.simulated_gpu import gpu_at_hand

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("benchmark_gpu", BENCHMARKS / "gpu.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TIERS", 2)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_gpu_check_without_gpu_fails_with_sentence(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures_file = BENCHMARKS / "measured" / "gpu.json"
    before = figures_file.read_bytes() if figures_file.exists() else None
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert check.main() == 1
    captured = capsys.readouterr()
    assert captured.err == "error: this machine has no CUDA device, so there is nothing to check\n"
    assert not captured.out
    assert before == (figures_file.read_bytes() if figures_file.exists() else None)


@pytest.mark.parametrize(
    "optimizer", [pytest.param("distro", marks=pytest.mark.slow), "sparseloco"]
)
def test_gpu_check_finds_equal_bits(check: ModuleType, optimizer: str) -> None:
    with gpu_at_hand() as gpu:
        assert check.exactness(SMALL, optimizer, gpu)


def test_gpu_check_without_kernels_reports_every_optimizer(check: ModuleType) -> None:
    assert check.kernels(torch.device("cpu")) == dict.fromkeys(check.OPTIMIZERS, False)


def test_gpu_check_finds_different_bit(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = check.Replica.apply

    def flipped(replica: object, votes: object, rate: float) -> None:
        apply(replica, votes, rate)
        if replica.params["model.norm.weight"].is_cuda:  # type: ignore[attr-defined]
            replica.params["model.norm.weight"].detach()[0].add_(2.0**-23)  # type: ignore[attr-defined]

    monkeypatch.setattr(check.Replica, "apply", flipped)
    with gpu_at_hand() as gpu:
        assert not check.exactness(SMALL, "distro", gpu)
