"""How a share is cut into passes: what fits, what happens without memory, and that the gradient
stays equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aftermath.base.errors import Unsuitable
from aftermath.model import network
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.replica.memory import free_bytes
from aftermath.replica.pass_size import AUTO, MOST, Checkpointing, OutOfMemory, PassSize
from aftermath.replica.replica import Replica
from aftermath.sim.setup import CONFIG
from member.result_inbox import SCHEMA

torch.set_num_threads(1)
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
NANOGPT = {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"} | {
    "model_type": "nanogpt"
}
DEEPSEEK = NANOGPT | {
    "model_type": "deepseek_v3",
    "q_lora_rank": 8,
    "kv_lora_rank": 4,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
FILES: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "llama with tiers of layers": SHAPE
    | {"matformer_tiers": [{"layers": [0, 2]}, {"layers": [2]}]},
    "nanogpt": NANOGPT | {"value_embeddings": 1, "x0_residual": True, "unet_skips": True},
    "deepseek": DEEPSEEK,
}
SEQUENCES = torch.arange(6 * 16).mul(7).remainder(64).view(6, 16)  # [sequences, tokens]


def _replica(pass_size: PassSize) -> Replica:
    weights = init_weights(CONFIG, 0)
    return Replica(
        SCHEMA,
        CONFIG,
        0,
        weights,
        device=torch.device("cpu"),
        pass_size=pass_size,
        stopwatch=lambda: 0.0,
    )


def _payloads(pass_size: PassSize) -> dict[int, bytes]:
    return _replica(pass_size).train(SEQUENCES, 0.1, 0.1, threading.Event()).payloads


# --- the gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", range(3))
@pytest.mark.parametrize("kind", FILES)
def test_recomputed_layers_have_equal_gradients(kind: str, tier: int) -> None:
    config = config_of(FILES[kind])
    gradients = []
    for recompute in (False, True):
        model = config.build(tier, init_weights(config, 1, tier))
        model.recompute = recompute
        model.loss(SEQUENCES).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None
        other = gradients[1][name]
        assert other is not None
        assert torch.equal(gradient, other), name


def test_recomputed_layers_keep_less_memory() -> None:
    totals = []
    for recompute in (False, True):
        model = config_of(SHAPE).build(0, init_weights(config_of(SHAPE), 1))
        model.recompute = recompute
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.loss(SEQUENCES)
        totals.append(sum(sizes))
    assert totals[1] < totals[0] / 3


@pytest.mark.parametrize(
    ("kind", "rows", "labels"),
    [
        *((kind, 40, True) for kind in FILES),
        ("llama", 1, True),
        ("nanogpt", 7, False),
        ("deepseek", 89, False),
    ],
)
def test_loss_computed_in_parts_equals_loss(
    kind: str, rows: int, labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(FILES[kind])
    targets = SEQUENCES.roll(1, 1).masked_fill(SEQUENCES % 5 == 0, -100) if labels else None
    results = []
    for at_once in (network.LOGITS_AT_ONCE, rows * config.vocab_size):
        monkeypatch.setattr(network, "LOGITS_AT_ONCE", at_once)
        model = config.build(0, init_weights(config, 1))
        loss = model.loss(SEQUENCES, targets)
        loss.backward()
        results.append(
            (loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()})
        )
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-6)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=1e-4, atol=1e-7)


# --- what fits ------------------------------------------------------------------------------------


@given(
    peak=st.integers(1, 1 << 40),
    free=st.integers(-(1 << 40), 1 << 40),
    kind=st.sampled_from(["auto", "on", "off"]),
)
def test_chosen_pass_size_fits_or_is_the_smallest(
    peak: int, free: int, kind: Checkpointing
) -> None:
    passes = PassSize(AUTO, kind)
    assert passes.unknown
    assert passes.size == 1
    settled = passes.settle(peak, free)
    assert settled or (passes.recompute and kind == "auto")
    assert settled != passes.unknown
    assert passes.size == 1 or (passes.size <= MOST and passes.size * peak <= free)
    assert passes.size & (passes.size - 1) == 0


@pytest.mark.parametrize(("kind", "steps"), [("auto", 4), ("on", 3), ("off", 3)])
def test_pass_size_shrinks_to_the_smallest(kind: Checkpointing, steps: int) -> None:
    passes = PassSize(9, kind)
    assert [passes.shrink() for _ in range(steps)] == [True] * steps
    assert (passes.size, passes.recompute) == (1, kind != "off")
    assert not passes.shrink()
    assert len(passes.news()) == steps
    assert passes.news() == ()


def test_auto_pass_size_trains_like_explicit_size() -> None:
    pass_size = PassSize(AUTO, "auto")
    payloads = _payloads(pass_size)
    assert not pass_size.unknown
    assert not pass_size.recompute
    (message,) = pass_size.news()
    assert "which fit into" in message
    assert payloads == _payloads(PassSize(pass_size.size, "off"))


def test_free_memory_is_positive_and_below_a_terabyte() -> None:
    assert 1 << 20 < free_bytes(torch.device("cpu")) < 1 << 40


# --- where memory runs out ------------------------------------------------------------------------


class _Tight:
    """A device that fits at most `most` sequences at once, and none without recomputed layers."""

    def __init__(self, replica: Replica, most: int, recompute: bool) -> None:
        self._model = replica.model
        self._most = most
        self._recompute = recompute
        self._loss = replica.model.loss

    def loss(self, sequences: Tensor, labels: Tensor | None = None) -> Tensor:
        if len(sequences) > self._most or (self._recompute and not self._model.recompute):
            self._loss(sequences[:1]).backward()  # memory runs out after a part of the work
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._loss(sequences, labels)


@pytest.mark.parametrize(
    ("most", "recompute", "size"), [(1, False, 5), (1, True, AUTO), (2, False, AUTO), (2, True, 5)]
)
def test_share_uses_smaller_passes_when_memory_runs_out(
    most: int, recompute: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = PassSize(size, "auto")
    replica = _replica(passes)
    monkeypatch.setattr(replica.model, "loss", _Tight(replica, most, recompute).loss)
    trained = replica.train(SEQUENCES, 0.1, 0.1, threading.Event())
    assert passes.size <= most
    assert passes.recompute == recompute
    assert trained.payloads == _payloads(PassSize(passes.size, "off"))
    assert passes.news()
    assert not replica.train(SEQUENCES, 0.1, 0.1, threading.Event()).loss > trained.loss + 1
    assert not passes.news()


def test_memory_too_small_for_one_sequence_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = _replica(PassSize(4, "off"))
    monkeypatch.setattr(replica.model, "loss", _Tight(replica, 0, False).loss)
    with pytest.raises(OutOfMemory, match="too little memory for tier 0, even with one sequence"):
        replica.train(SEQUENCES, 0.1, 0.1, threading.Event())


LIMITED = """
import resource, sys, threading
import torch
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.schema import build_schema
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.sim.setup import CONFIG
from member.result_inbox import SCHEMA
torch.set_num_threads(1)
passes = PassSize(32, "auto")
replica = Replica(
    SCHEMA, CONFIG, 0, init_weights(CONFIG, 0), device=torch.device("cpu"), pass_size=passes, stopwatch=lambda: 0.0
)
sequences = torch.arange(32 * 1024).remainder(64).view(32, 1024)
replica.train(sequences[:1, :64], 0.1, 0.1, threading.Event())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), -1))
trained = replica.train(sequences, 0.1, 0.1, threading.Event())
print(passes.size, passes.news())
"""


@pytest.mark.slow
def test_system_allocator_error_halves_the_passes() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", LIMITED],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert completed.returncode == 0, completed.stderr
    size, _, message = completed.stdout.partition(" ")
    assert 1 <= int(size) < 32
    assert "out of memory: using passes of" in message


def test_network_without_checkpointing_reports_it() -> None:
    with pytest.raises(Unsuitable, match="activation-checkpointing"):
        PassSize(1, "on").forbid_recompute()
    passes = PassSize(1, "auto")
    passes.forbid_recompute()
    assert not passes.shrink()
