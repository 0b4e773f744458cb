"""How passes are computed: the meaning of the options, what stays fp32 with bf16, and that
compilation changes only the time of a step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aftermath.base.errors import Unsuitable
from aftermath.model.arch.deepseek import Gate
from aftermath.model.arch.llama import LlamaLayer
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.optim.schema import build_schema
from aftermath.replica.options import Arithmetic, Compile, Precision
from aftermath.replica.pass_size import PassSize
from aftermath.replica.passes import Passes, arithmetic_of
from aftermath.replica.replica import Replica, accumulate
from replica.whole_round import CPU, MODELS, OPTIMIZERS, votes_of

BF16 = Arithmetic(bf16=True)
Loss = Callable[..., Tensor]
SHARE = torch.randint(0, 48, (5, 16), generator=torch.Generator().manual_seed(4))


def network(model: str) -> LanguageModel:
    if model.startswith("auto"):
        pytest.importorskip("transformers")
    config = config_of(MODELS[model])
    return config.build(0, init_weights(config, 3))


def replica(arithmetic: Arithmetic) -> Replica:
    config = config_of(MODELS["llama"])
    schema = build_schema(config.to_hf(), 3, OPTIMIZERS["distro"])
    weights = init_weights(config, 3)
    options: dict[str, Any] = {
        "device": CPU,
        "pass_size": PassSize(3, "auto"),
        "stopwatch": lambda: 0.0,
    }
    return Replica(schema, config, 0, weights, arithmetic=arithmetic, **options)


def gradients(passes: Passes, model: nn.Module) -> dict[str, Tensor]:
    accumulate(passes, SHARE, 3, threading.Event())
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


# --- what options mean ----------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """A machine with the given devices. `cuda` and `mps` say whether each supports bf16."""
    has = {"cuda": True, "mps": True}
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: has["mps"])
    return has


@pytest.mark.parametrize(
    ("device", "has", "precision", "compiled", "expected"),
    [
        ("cpu", True, "auto", "auto", Arithmetic(bf16=False, compiled=False)),
        ("cuda:0", True, "auto", "auto", Arithmetic(bf16=True, compiled=True)),
        ("cuda:0", False, "auto", "off", Arithmetic(bf16=False, compiled=False)),
        ("cuda:0", True, "fp32", "on", Arithmetic(bf16=False, compiled=True)),
        ("mps", True, "auto", "auto", Arithmetic(bf16=True, compiled=False)),
        ("mps", False, "auto", "auto", Arithmetic(bf16=False, compiled=False)),
        ("cpu", True, "bf16", "on", Arithmetic(bf16=True, compiled=True)),
    ],
)
def test_auto_arithmetic_is_bf16_on_gpus_and_compiled_on_cuda(
    machine: dict[str, bool],
    device: str,
    has: bool,
    precision: Precision,
    compiled: Compile,
    expected: Arithmetic,
) -> None:
    machine[device[:4].rstrip(":")] = has
    assert arithmetic_of(torch.device(device), precision, compiled) == expected


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_bf16_on_unsupported_device_raises(machine: dict[str, bool], device: str) -> None:
    machine.update(cuda=False, mps=False)
    with pytest.raises(Unsuitable, match=rf"--precision bf16: {device} does not support bf16"):
        arithmetic_of(torch.device(device), "bf16", "off")


# --- bf16 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_bf16_passes_give_gradients_close_to_fp32(model: str) -> None:
    plain = network(model)
    cast = network(model)
    expected = gradients(Passes(plain), plain)
    bf16_gradients = gradients(Passes(cast, BF16), cast)
    assert bf16_gradients.keys() == expected.keys()
    assert {tensor.dtype for tensor in (*bf16_gradients.values(), *cast.parameters())} == {
        torch.float32
    }
    assert any(not torch.equal(bf16_gradients[name], expected[name]) for name in expected)
    flat, other = (
        torch.cat([tensors[name].flatten() for name in sorted(expected)])
        for tensors in (bf16_gradients, expected)
    )
    assert torch.nn.functional.cosine_similarity(flat, other, 0) > 0.99


def test_residual_stream_and_loss_stay_fp32() -> None:
    model = network("llama")
    dtypes = set()
    for layer in (module for module in model.modules() if isinstance(module, LlamaLayer)):
        layer.register_forward_hook(lambda module, inputs, out: dtypes.add(out.dtype))
        layer.mlp.register_forward_hook(lambda module, inputs, out: dtypes.add(("mlp", out.dtype)))
    assert Passes(model, BF16).loss(SHARE).dtype == torch.float32
    assert dtypes == {torch.float32, ("mlp", torch.bfloat16)}


@pytest.mark.parametrize("model", ["deepseek-v2", "deepseek-v3"])
def test_bf16_chooses_same_experts_as_fp32(model: str) -> None:
    gate = next(module for module in network(model).modules() if isinstance(module, Gate))
    hidden = torch.randn(200, 32, generator=torch.Generator().manual_seed(1))
    expected = gate(hidden)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        choice = gate(hidden)
    assert all(torch.equal(one, other) for one, other in zip(choice, expected, strict=True))


def test_round_trained_in_bf16_applies_like_any_other() -> None:
    """Results have the same size, training leaves parameters unchanged, and replicas end equal."""
    plain = replica(Arithmetic())
    cast = replica(BF16)
    results = [own.train(SHARE, 0.1, 0.1, threading.Event()).payloads for own in (plain, cast)]
    assert plain.hashes() == cast.hashes()
    assert results[0] != results[1]
    sizes = [[len(payload) for payload in own.values()] for own in results]
    assert sizes[0] == sizes[1]
    for own in (plain, cast):
        own.apply(votes_of(own.schema, own, results), 0.1)
    assert plain.hashes() == cast.hashes() != replica(BF16).hashes()


# --- compiling ------------------------------------------------------------------------------------


def test_compile_off_never_calls_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", None)
    replica(BF16).train(SHARE, 0.1, 0.1, threading.Event())


def test_compiler_that_fails_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(loss: Loss) -> Loss:
        def fails(*tensors: Tensor | None) -> Tensor:
            loss(*tensors)
            raise RuntimeError("no compiler here\nand much more")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    one = replica(Arithmetic(compiled=True))
    other = replica(Arithmetic())
    with caplog.at_level(logging.WARNING, "aftermath"):
        results = [
            [own.train(SHARE, 0.1, 0.1, threading.Event()).payloads for _ in range(2)]
            for own in (one, other)
        ]
    assert results[0] == results[1]
    (message,) = [
        record.getMessage() for record in caplog.records if record.name.startswith("aftermath")
    ]
    assert message == "training without torch.compile, which failed: no compiler here"


def test_compiler_out_of_memory_stays_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*tensors: Tensor | None) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", lambda loss: full)
    passes = Passes(network("llama"), Arithmetic(compiled=True))
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            passes.loss(SHARE)


def test_only_first_kind_of_passes_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new shape is tried once, with a backward pass."""
    shapes: list[tuple[int, ...]] = []

    def compile_nothing(loss: Loss) -> Loss:
        def noted(input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
            shapes.append(tuple(input_ids.shape))
            return loss(input_ids, labels)

        return noted

    monkeypatch.setattr(torch, "compile", compile_nothing)
    passes = Passes(network("llama"), Arithmetic(compiled=True))
    for shares, labels in (
        (SHARE, None),
        (SHARE, None),
        (SHARE[:1], None),
        (SHARE[:, :8], None),
        (SHARE, SHARE),
    ):
        passes.loss(shares, labels)
    assert shapes == [(5, 16)] * 3, "one try and two passes"
    passes.loss(SHARE[:3])
    assert shapes[3:] == [(3, 16)] * 2
    passes.plain().loss(SHARE)
    assert len(shapes) == 5


@pytest.mark.parametrize(
    ("counts", "compiled"),
    [
        ([3, 2], True),
        ([3, 1], True),  # a remainder is not compiled, and not by a new replica either
        ([1, 3], None),  # a new replica would compile the passes of one sequence
        ([1], False),
    ],
)
def test_passes_say_whether_new_ones_compile_the_same(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], compiled: bool | None
) -> None:
    monkeypatch.setattr(torch, "compile", lambda loss: loss)
    passes = Passes(network("llama"), Arithmetic(compiled=True))
    passes.loss(SHARE)
    passes.begin_share()
    for number in counts:
        passes.loss(SHARE[:number])
    assert passes.compiled is compiled


@pytest.mark.nightly
def test_machine_without_compiler_trains_uncompiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    from torch._inductor import config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    passes = [
        Passes(network("qwen3"), arithmetic)
        for arithmetic in (Arithmetic(compiled=True), Arithmetic())
    ]
    with (
        inductor.patch({"cpp.cxx": (str(tmp_path / "no-compiler"),)}),
        caplog.at_level(logging.WARNING, "aftermath"),
    ):
        compiled, plain = (own.loss(SHARE) for own in passes)
    assert torch.equal(compiled, plain)
    (message,) = [
        record.getMessage() for record in caplog.records if record.name.startswith("aftermath")
    ]
    assert message.startswith("training without torch.compile, which failed: ")


@pytest.fixture(
    params=[
        pytest.param("aot_eager", marks=pytest.mark.slow),
        pytest.param("inductor", marks=pytest.mark.nightly),
    ]
)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend of `torch.compile`. Compiling C++ takes half a minute, and graphs and gradients
    are equal without it.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=request.param))
    return str(request.param)


def test_one_compiled_graph_serves_all_replicas_and_batches(backend: str) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    replica(Arithmetic(compiled=True)).warm_up(16, labels=False)
    assert counters["stats"]["unique_graphs"] == 1
    other = replica(Arithmetic(compiled=True))
    for sequences in (3, 5, 4):  # in micro-batches of 3 and 0, 2, 1
        other.train(SHARE[:sequences], 0.1, 0.1, threading.Event())
    assert counters["stats"]["unique_graphs"] == 1


def test_compiled_pass_gradients_equal_eager_gradients(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    plain = network("llama")
    compiled = network("llama")
    passes = Passes(compiled, Arithmetic(compiled=True))
    expected = gradients(Passes(plain), plain)
    compiled_gradients = gradients(passes, compiled)
    assert not [record for record in caplog.records if record.name.startswith("aftermath")]
    assert compiled_gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(compiled_gradients[name], gradient, rtol=1e-3, atol=1e-6)
