"""Tests on a real GPU, which `make gpu-check` runs. `test_simulated_gpu.py` needs no GPU."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch

from aftermath.model import segments
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.schema import build_schema
from aftermath.replica.exactness import exact_device
from aftermath.replica.options import Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.passes import arithmetic_of
from aftermath.replica.replica import Replica
from replica.whole_round import CPU, MODELS, OPTIMIZERS, play

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device here"
)
SHARE = torch.randint(0, 48, (6, 16), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def gpu() -> torch.device:
    """Return the GPU, after proving that it is exact."""
    return exact_device("cuda:0")


@pytest.mark.parametrize("model", MODELS)
def test_cpu_results_on_gpu_are_applied_bit_by_bit(gpu: torch.device, model: str) -> None:
    if model.startswith("auto"):
        pytest.importorskip("transformers")
    _same(gpu, model, "distro")


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "distro"])
def test_every_optimizer_on_gpu_applies_cpu_results(gpu: torch.device, optimizer: str) -> None:
    _same(gpu, "llama", optimizer)


def _same(gpu: torch.device, model: str, optimizer: str) -> None:
    there = play(model, optimizer, CPU)
    here = play(model, optimizer, gpu, other_results=there.payloads)
    assert here.hashes == there.hashes
    assert here.loaded == there.hashes


def test_equal_gradients_give_equal_payloads(gpu: torch.device) -> None:
    """Passes may round differently each time, but equal gradients must give equal payloads."""
    results = []
    for _ in range(2):
        replica = _replica(gpu, Arithmetic())
        draws = torch.Generator().manual_seed(5)
        tensors = {
            name: torch.randn(own.shape, generator=draws).to(gpu)
            for name, own in replica.params.items()
        }
        results.append(
            [
                replica.optimizer._result.compress(PseudoGradient(tensors, 0.5, 0.0))
                for _ in range(3)
            ]
        )
    assert results[0] == results[1]


def test_compiled_pass_loss_equals_eager_loss(
    gpu: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    losses = []
    with caplog.at_level(logging.WARNING, "aftermath"):
        for compiled in (False, True):
            replica = _replica(gpu, Arithmetic(compiled=compiled))
            losses.append(replica.train(SHARE, 0.1, 0.1, threading.Event()).loss)
    assert not [record for record in caplog.records if record.name.startswith("aftermath")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_auto_on_gpu_compiles_and_uses_bf16(gpu: torch.device) -> None:
    assert arithmetic_of(gpu, "auto", "auto") == Arithmetic(
        bf16=torch.cuda.is_bf16_supported(including_emulation=False), compiled=True
    )


def test_bytes_copied_in_many_parts_equal_cpu_bytes(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_PINNED_BYTES", 1 << 10)
    config = config_of(MODELS["llama"])
    schema = build_schema(config.to_hf(), 3, OPTIMIZERS["distro"])
    there = init_weights(config, 3)
    here = {name: tensor.to(gpu) for name, tensor in there.items()}
    for level in range(3):
        hashes = [segments.level_hash(params, schema.state, level) for params in (here, there)]
        assert hashes[0] == hashes[1]
        for segment in schema.state.of_level(level):
            copied = segments.segment_bytes(here, segment)
            assert copied == segments.segment_bytes(there, segment)


def test_tokens_are_uploaded_from_pinned_memory_whole(gpu: torch.device) -> None:
    placed = _replica(gpu, Arithmetic()).passes.upload(SHARE)
    assert placed.device == gpu
    assert torch.equal(placed.cpu(), SHARE)


def _replica(device: torch.device, arithmetic: Arithmetic) -> Replica:
    config = config_of(MODELS["llama"])
    options: dict[str, Any] = {
        "device": device,
        "pass_size": PassSize(3, "auto"),
        "stopwatch": lambda: 0.0,
    }
    schema = build_schema(config.to_hf(), 3, OPTIMIZERS["distro"])
    return Replica(schema, config, 0, init_weights(config, 3), arithmetic=arithmetic, **options)
