"""A replica's arithmetic: the gradient of a share, its clipping, and the choice of the device."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest
import torch

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.model.initial_weights import init_weights
from aftermath.optim.codec import decode_level
from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.schema import Schema
from aftermath.replica.device_kind import device_kind
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import (
    Cancelled,
    Replica,
    pass_settings,
    pick_device,
    weight_of,
)
from aftermath.rules.announcements import PassSettings
from aftermath.rules.fields import Products
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG
from member.result_inbox import DISTRO, SCHEMA
from replica.whole_round import CPU, play

SEQUENCES = torch.arange(6 * 16).mul(7).remainder(64).view(6, 16)  # [sequences, tokens]


def _replica(
    micro: int = 4, tier: int = 0, clip: float | None = None, optimizer: Optimizer | None = None
) -> Replica:
    weights = init_weights(CONFIG, 0, tier)
    return Replica(
        Schema(SCHEMA.state, optimizer or replace(DISTRO, clip=clip)),
        CONFIG,
        tier,
        weights,
        device=torch.device("cpu"),
        pass_size=PassSize(micro, "off"),
        stopwatch=lambda: 0.0,
    )


def _gradient(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, sequences: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the gradient that a replica passes to its optimizer for these sequences."""
    tensors: dict[str, torch.Tensor] = {}
    result = replica.optimizer._result
    compress = result.compress

    def note(gradient: PseudoGradient) -> dict[int, bytes]:
        tensors.update({name: grad.clone() for name, grad in gradient.tensors.items()})
        return compress(gradient)

    with monkeypatch.context() as patch:
        patch.setattr(result, "compress", note)
        replica.train(sequences, 0.1, 0.1, threading.Event())
    return tensors


def _norm(grads: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([grad.flatten() for grad in grads.values()]).norm())


# --- training -------------------------------------------------------------------------------------


def test_dummy_share_is_encoded_noise_without_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def dummy(seed: int) -> dict[int, bytes]:
        replica = _replica()
        before = replica.hashes()
        monkeypatch.setattr(replica, "_backward", None)
        monkeypatch.setattr(replica.model, "forward", None)
        trained = replica.train(SEQUENCES, 0.1, 0.1, threading.Event(), dummy_seed=seed)
        assert trained.loss == pytest.approx(math.log(CONFIG.vocab_size))
        assert replica.hashes() == before
        for level, data in trained.payloads.items():
            assert decode_level(data, replica.schema.results, level, CPU) is not None
        return trained.payloads

    assert dummy(1) == dummy(1)
    assert dummy(1) != dummy(2)


@pytest.mark.parametrize("tier", range(3))
@pytest.mark.parametrize("micro", [1, 2, 4, 5])
def test_gradient_equals_share_mean_for_any_micro_batch(
    monkeypatch: pytest.MonkeyPatch, micro: int, tier: int
) -> None:
    """Micro-batches that divide six sequences, and others that do not."""
    model = _replica(tier=tier).model
    model.loss(SEQUENCES).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    gradient = _gradient(_replica(micro, tier), monkeypatch, SEQUENCES)
    assert gradient.keys() == expected.keys()
    for name, grad in expected.items():
        assert grad is not None
        torch.testing.assert_close(gradient[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("micro", [1, 4, 6])
def test_loss_equals_mean_over_share(micro: int) -> None:
    trained = _replica(micro).train(SEQUENCES, 0.1, 0.1, threading.Event())
    assert trained.loss == pytest.approx(_replica().model.loss(SEQUENCES).item(), rel=1e-5)
    assert trained.tokens == SEQUENCES.numel()


def test_only_large_gradients_are_scaled_to_clip_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    free = _gradient(_replica(), monkeypatch, SEQUENCES)
    norm = _norm(free)
    clipped = _gradient(_replica(clip=norm / 4), monkeypatch, SEQUENCES)
    assert _norm(clipped) == pytest.approx(norm / 4, rel=1e-4)
    for name, grad in free.items():
        torch.testing.assert_close(clipped[name], grad / 4, rtol=1e-4, atol=1e-8)
    left = _gradient(_replica(clip=norm * 4), monkeypatch, SEQUENCES)
    assert all(torch.equal(left[name], grad) for name, grad in free.items())


def test_training_leaves_parameters_unchanged() -> None:
    replica = _replica()
    before = replica.hashes()
    for _ in range(2):  # the second share looks ahead along a nonzero residual
        payloads = replica.train(SEQUENCES, 0.1, 0.1, threading.Event()).payloads
    assert replica.hashes() == before
    assert payloads.keys() == {0, 1, 2}


def test_training_looks_ahead_along_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = _replica()
    first = _gradient(replica, monkeypatch, SEQUENCES)
    second = _gradient(replica, monkeypatch, SEQUENCES)
    assert any(not torch.equal(second[name], grad) for name, grad in first.items())


@pytest.mark.parametrize(
    ("inner_optimizer", "bf16", "muon_in_bf16", "products", "steps"),
    [
        ("adamw", False, True, "fp32", "fp32"),
        ("adamw", True, False, "bf16", "fp32"),
        ("muon", False, False, "fp32", "fp32"),
        ("muon", False, True, "fp32", "bf16"),
    ],
)
def test_pass_settings_name_precision_of_passes_and_steps(
    monkeypatch: pytest.MonkeyPatch,
    inner_optimizer: str,
    bf16: bool,
    muon_in_bf16: bool,
    products: Products,
    steps: Products,
) -> None:
    monkeypatch.setattr("aftermath.optim.muon.at_once", lambda device: muon_in_bf16)
    settings = SparseLoCo(inner_optimizer=inner_optimizer)  # type: ignore[arg-type]
    schema = Schema(SCHEMA.state, settings)
    pass_options = pass_settings(schema, 8, CPU, bf16=bf16)
    assert pass_options == PassSettings(8, products, steps, False, device_kind(CPU))


def test_pass_settings_of_unrepeatable_passes_name_no_device() -> None:
    assert pass_settings(SCHEMA, 8, CPU, bf16=True, repeatable=False).device == ""
    too_many = pass_settings(SCHEMA, 100_000, CPU, bf16=True)
    assert (too_many.micro_batch, too_many.device) == (65535, "")


def test_share_that_changed_its_pass_size_is_unrepeatable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two inner steps, memory runs out. No other machine knows where."""
    replica = _replica(optimizer=SparseLoCo(inner_steps=2))
    passes = replica.passes
    loss = passes.loss
    calls = 0

    def fails_once(*arguments: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return loss(*arguments)

    monkeypatch.setattr(passes, "loss", fails_once)
    replica.train(SEQUENCES, 0.1, 0.1, threading.Event())
    assert replica.pass_settings.device == ""
    replica.train(SEQUENCES, 0.1, 0.1, threading.Event())
    assert replica.pass_settings.device == device_kind(CPU) != ""


def test_replicas_of_two_tiers_stay_equal_on_shared_levels() -> None:
    """Each applies the results of both. The smaller replica's result has fewer levels."""
    replicas = [_replica(tier=0), _replica(tier=1)]
    for step in range(3):
        payloads = [
            r.train(SEQUENCES[r.tier :: 2], 0.1, 0.1, threading.Event()).payloads for r in replicas
        ]
        for replica in replicas:
            votes = {
                level: [
                    decode_level(p[level], SCHEMA.results, level) for p in payloads if level in p
                ]
                for level in replica.levels
            }
            replica.apply(votes, 0.1)
        large, small = (replica.hashes() for replica in replicas)
        assert {level: large[level] for level in small} == small, step
    assert large != _replica().hashes()


def test_cancelled_training_changes_nothing() -> None:
    replica = _replica()
    cancelled = threading.Event()
    before = replica.hashes()
    cancelled.set()
    with pytest.raises(Cancelled):
        replica.train(SEQUENCES, 0.1, 0.1, cancelled)
    assert replica.hashes() == before
    other = _replica()
    results = [r.train(SEQUENCES, 0.1, 0.1, threading.Event()).payloads for r in (replica, other)]
    assert results[0] == results[1]


def test_nonfinite_gradient_leaves_state_unchanged() -> None:
    replica = _replica()
    other = _replica()
    hook = replica.params["model.norm.weight"].register_hook(
        lambda grad: torch.full_like(grad, float("nan"))
    )
    with pytest.raises(NonFiniteGradient, match="norm"):
        replica.train(SEQUENCES, 0.1, 0.1, threading.Event())
    hook.remove()
    results = [r.train(SEQUENCES, 0.1, 0.1, threading.Event()).payloads for r in (replica, other)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("sequences", "seconds", "weight"), [(8, 2.0, 240), (8, 0.0, 65535), (1, 1e9, 1), (3, 7.0, 26)]
)
def test_weight_is_sequences_per_minute_within_limits(
    sequences: int, seconds: float, weight: int
) -> None:
    assert weight_of(sequences, seconds) == weight


# --- devices --------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A machine with `gpus` GPUs, and with an MPS device if `mps`."""
    has = {"gpus": 0, "mps": 0}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has["gpus"] > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: has["gpus"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has["mps"] > 0)
    return has


@pytest.mark.parametrize(
    ("gpus", "mps", "name", "device"),
    [
        (0, 0, "auto", "cpu"),
        (0, 1, "auto", "mps"),
        (2, 0, "auto", "cuda"),
        (2, 1, "cpu", "cpu"),
        (0, 1, "mps", "mps"),
        (2, 0, "cuda", "cuda"),
        (2, 0, "cuda:1", "cuda:1"),
        (4, 0, "cuda:3,0,1", "cuda:3"),
    ],
)
def test_available_device_is_picked(
    machine: dict[str, int], gpus: int, mps: int, name: str, device: str
) -> None:
    machine.update(gpus=gpus, mps=mps)
    assert pick_device(name) == torch.device(device)


@pytest.mark.parametrize(
    "name",
    [
        "foo",
        "",
        "CUDA",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:0,",
        "cuda:1234",
        "cpu:0",
        "cpu,mps",
        "auto ",
    ],
)
def test_unknown_device_error_lists_valid_names(machine: dict[str, int], name: str) -> None:
    machine.update(gpus=8, mps=1)
    with pytest.raises(UsageError, match=r"(?s)^--device .*Use auto, cpu, mps, cuda or cuda:X,Y"):
        pick_device(name)


@pytest.mark.parametrize(
    ("name", "says"), [("cuda", "no CUDA device"), ("cuda:0", "no CUDA"), ("mps", "no MPS device")]
)
def test_unavailable_device_raises(machine: dict[str, int], name: str, says: str) -> None:
    with pytest.raises(Unsuitable, match=f"(?s){says}.*Use cpu or auto"):
        pick_device(name)


def test_gpu_index_beyond_last_raises(machine: dict[str, int]) -> None:
    machine.update(gpus=2)
    with pytest.raises(
        Unsuitable,
        match=r"--device cuda:2 does not exist\nUse one of this machine's devices, cuda:0 to cuda:1",
    ):
        pick_device("cuda:2")


@pytest.mark.parametrize(
    "optimizer", ["distro", "sparseloco", "sparseloco-muon", "sparseloco-polar"]
)
def test_replicas_with_stacked_experts_stay_equal(optimizer: str) -> None:
    pytest.importorskip("transformers")
    left = play("auto-experts", optimizer, CPU)
    assert left.hashes[0] == left.hashes[1] == left.hashes[2] == left.loaded[0]
    assert len({payload[0] for payload in left.payloads[0]}) == 3
