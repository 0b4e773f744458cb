"""Whole rounds on a simulated GPU: no operation mixes devices, and the bits equal the CPU's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aftermath.lab.held_out import loss_on
from aftermath.model.architectures import config_of
from aftermath.model.generate import generate
from aftermath.model.initial_weights import init_weights
from aftermath.optim.schema import build_schema
from aftermath.replica.options import Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.passes import Passes
from aftermath.replica.replica import Replica
from replica.simulated_gpu import GPU, OnGpu, gpu_at_hand
from replica.whole_round import CPU, MODELS, OPTIMIZERS, play

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable compiled kernels and fused AdamW on both devices. They run only on the CPU and round
    differently (`tests/kernels`).
    """
    monkeypatch.setattr(
        "aftermath.optim.compiled_proof.unfit", lambda: "torch is compared with itself"
    )
    monkeypatch.setattr("aftermath.optim.inner_optimizer.may_fuse", lambda _: False)


HERE = [name for name in MODELS if name != "auto-experts"]
"""All models but the one whose experts transformers counts with `one_hot`. That function creates
tensors outside the simulation, and loops over numbers that `FakeTensorMode` lacks. `test_on_cuda`
covers this model.
"""
ESSENTIAL = [("nanogpt", "distro"), ("qwen3", "sparseloco-muon")]
"""Signs, and a mean with inner steps, Muon and shared key heads."""
ESSENTIAL += [("deepseek-v3", "distro"), ("auto", "distro"), ("llama", "sparseloco-whole-polar")]
"""Experts, a transformers architecture, and results with all numbers."""
OTHERS = {(model, "distro") for model in HERE} | {("llama", name) for name in OPTIMIZERS}
OTHERS -= {*ESSENTIAL, ("llama", "sparseloco-muon")}


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [pytest.param(*pair, marks=pytest.mark.slow) for pair in ESSENTIAL]
    + [pytest.param(*pair, marks=pytest.mark.nightly) for pair in sorted(OTHERS)],
)
def test_simulated_gpu_rounds_equal_cpu_bits(model: str, optimizer: str) -> None:
    if model.startswith("auto"):
        pytest.importorskip("transformers")
    there = play(model, optimizer, CPU)
    # with torch's attention on a GPU, which rounds differently
    shares_heads = "num_key_value_heads" in MODELS[model]
    with gpu_at_hand() as gpu:
        here = play(model, optimizer, gpu, other_results=there.payloads if shares_heads else None)
    assert here.hashes == there.hashes
    assert shares_heads or here.payloads == there.payloads
    assert here.loaded == here.hashes
    assert len({frozenset(hashes.items()) for hashes in here.hashes}) == len(
        set(map(len, here.hashes))
    )


def test_simulated_gpu_measures_speed_and_writes_text() -> None:
    with gpu_at_hand() as gpu:
        config = config_of(MODELS["nanogpt"])
        schema = build_schema(config.to_hf(), 3, OPTIMIZERS["distro"])
        weights = init_weights(config, 3)
        clock = itertools.count()
        options: dict[str, Any] = {
            "device": gpu,
            "pass_size": PassSize(2, "auto"),
            "stopwatch": lambda: float(next(clock)),
        }
        replica = Replica(schema, config, 0, weights, **options)
        assert replica.measure_weight(16, 100.0) == 60 * 2
        here = generate(replica.model, [1, 2, 3], new_tokens=5, temperature=1.0, seed=2)
        loss = loss_on(replica.model, torch.arange(32).view(2, 16))
    model = config.build(0, weights)
    assert here == generate(model, [1, 2, 3], new_tokens=5, temperature=1.0, seed=2)
    assert loss == loss_on(model, torch.arange(32).view(2, 16))


@pytest.mark.parametrize("model", HERE)
def test_simulated_gpu_bf16_passes_have_gpu_types(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Use torch's rules for CUDA without numbers. They show what it would refuse or compute in
    another type.
    """
    if model.startswith("auto"):
        pytest.importorskip("transformers")
    config = config_of(MODELS[model])
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    output_types: set[tuple[str, torch.dtype, str]] = set()

    def note(module: torch.nn.Module, args: object, out: object) -> None:
        if isinstance(out, torch.Tensor):
            output_types.add((type(module).__name__, out.dtype, out.device.type))

    with FakeTensorMode(shape_env=ShapeEnv()):
        shapes = config.parameter_shapes()
        network = config.build(
            0, {name: torch.empty(shape, device=GPU) for name, shape in shapes.items()}
        )
        for module in network.modules():
            module.register_forward_hook(note)
        loss = Passes(network, Arithmetic(bf16=True)).loss(
            torch.zeros(2, 16, dtype=torch.int64, device=GPU)
        )
    assert (loss.dtype, loss.device) == (torch.float32, GPU)
    assert {device for _, _, device in output_types} == {"cuda"}
    types = {(name, dtype) for name, dtype, _ in output_types}
    products = {"Linear", "Conv1D"} & {name for name, _ in types}
    assert all(
        (name, torch.bfloat16) in types and (name, torch.float32) not in types for name in products
    )
    assert not {"RMSNorm", "LayerNorm", "Layer", "Decoder"} & {
        name for name, dtype in types if dtype == torch.bfloat16
    }


def test_simulated_gpu_refuses_mixed_devices() -> None:
    with gpu_at_hand():
        here = torch.ones(3).to(GPU)
        there = torch.ones(3)
        assert isinstance(here, OnGpu)
        for mixed in (lambda: here + there, lambda: here.add_(there), lambda: here[there.long()]):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            here.numpy()
        assert torch.equal(there.copy_(here * 2), torch.full((3,), 2.0))
        assert (here + torch.tensor(1.0)).tolist() == [2.0] * 3
