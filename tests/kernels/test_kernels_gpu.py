"""Triton kernels give the bits of torch: interpreted on every machine, compiled on a GPU.

Without a GPU the tests compile them for one, as far as its assembly.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aftermath.optim import (
    gpu_choice,
    level_kernels,
    packed_dense,
    packed_sparse,
    sparse_proof,
    triton_gate,
)
from aftermath.optim.codec import BadPayload, decode_level, decode_on_cpu, encode_entries
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.lattice import SMALLEST, quantise
from aftermath.optim.result_format import Values
from aftermath.optim.schema import Schema
from aftermath.optim.transform import ZERO_BELOW, strongest
from optim.optim_oracle import toy_inner, toy_schema
from optim.optim_replica import bits, gradients, tensors

pytest.importorskip("triton")
CPU = torch.device("cpu")
GPU = torch.device("cuda:0")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton reads it at import, so interpreted tests run in another process."""
called = pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(), reason="the interpreter calls these"
)


LONG = (
    "test_whole_levels_equal_torch_on_cpu[digits of 1 bit]",
    "test_applied_parameters_equal_torch_on_cpu[larger blocks]",
    "test_applied_parameters_equal_torch_on_cpu[polar]",
    "test_device_with_different_results_is_refused[digits of 2 bits]",
    "test_device_with_different_results_is_refused[sparse values]",
    "test_sparse_payload_faults_equal_torch[1 bit]",
    "test_sparse_payload_faults_equal_torch[sign]",
    "test_whole_levels_equal_torch_on_cpu[sparse signs]",
    "test_whole_levels_equal_torch_on_cpu[sparse values of 1 bit]",
    "test_whole_levels_equal_torch_on_cpu[sparse values of 2 bits]",
)
"""Cases that take most of the interpreter's time, for kernels that other cases also call. Kernels
are proven before their use, so other cases also run the proofs.
"""


@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param(LONG, marks=pytest.mark.slow, id="short"),
        pytest.param((), marks=pytest.mark.nightly, id="whole"),
    ],
)
@pytest.mark.timeout(900)
@pytest.mark.skipif(INTERPRETED, reason="this is its process")
def test_interpreted_kernels_equal_torch_bits(left_out: tuple[str, ...]) -> None:
    """Run the tests below that call kernels, on this machine's CPU."""
    files = [__file__, str(Path(__file__).with_name("test_launches.py"))]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *files]
    command += [f"--deselect=tests/kernels/{Path(__file__).name}::{name}" for name in left_out]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    completed = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert completed.returncode == 0, completed.stdout


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Return a device on which kernels run."""
    if INTERPRETED:
        monkeypatch.setattr(triton_gate, "works_on", lambda device: True)
        # Kernels prove each block size before use. Few blocks suffice: all kinds, twice each.
        monkeypatch.setattr(gpu_choice, "_PROVED", 8)
    return CPU if INTERPRETED else GPU


@st.composite
def coefficients(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    """Draw blocks with few or many ties and zeros, a top-k and the lattice's bits."""
    size = draw(st.sampled_from([1, 2, 5, 49, 64, 100, 255, 1024, 4096]))
    topk = min(size, draw(st.sampled_from([1, 2, 8, 17, 64, 300, 4096])))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(3, size, generator=random) * 2.0 ** draw(
        st.sampled_from([-130, -40, 0, 60])
    )
    kind = draw(st.sampled_from(["plain", "coarse", "sparse", "equal"]))
    if kind == "coarse":
        values = (torch.randn(3, size, generator=random) * 2).round_()
    elif kind == "sparse":
        values[torch.rand(3, size, generator=random) < 0.97] = 0
    elif kind == "equal":
        values = torch.where(torch.rand(3, size, generator=random) < 0.5, -1.5, 1.5)
    return values, topk, draw(st.sampled_from([0, 1, 2]))


@called
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=coefficients())
def test_top_k_and_lattice_equal_torch(
    device: torch.device, case: tuple[torch.Tensor, int, int]
) -> None:
    values, topk, lattice = case
    smallest = SMALLEST if lattice else ZERO_BELOW
    indices, chosen_values = strongest(values, topk, smallest)
    chosen_values = quantise(chosen_values, lattice) if lattice else chosen_values
    choice = gpu_choice.choose(values.to(device), topk, smallest, lattice)
    assert choice[0].tolist() == indices.tolist()
    assert choice[1].cpu().numpy().tobytes() == chosen_values.numpy().tobytes()


@called
def test_wrong_kernels_are_refused_before_use(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert gpu_choice.chooses(device, 64, 4, 2)
    assert not caplog.records
    assert not gpu_choice.chooses(device, 1 << 16, 4, 2)  # more than a program holds
    gpu_choice._choosing.cache_clear()
    choose = gpu_choice.choose
    monkeypatch.setattr(
        gpu_choice, "choose", lambda *args: (choose(*args)[0], choose(*args)[1] * 2)
    )
    assert not gpu_choice.chooses(device, 64, 4, 2)
    assert [record.getMessage() for record in caplog.records] == [
        f"Triton kernels on {device} choose coefficients differently from torch; using torch instead"
    ]
    monkeypatch.setattr(gpu_choice, "choose", lambda *args: 1 / 0)
    gpu_choice._choosing.cache_clear()
    assert not gpu_choice.chooses(device, 64, 4, 2)
    assert "fail: division by zero" in caplog.records[-1].getMessage()
    gpu_choice._choosing.cache_clear()


# --- whole results and applies --------------------------------------------------------------------


def on(device: torch.device, schema: Schema, tier: int) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors(schema, tier, 0).items()}


# The interpreter takes up to a second per block, so tests use few: 20 whole blocks, and 46 padded
# ones of which some at the ends are smaller.
WHOLE = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 32}
PADDED = {"vocab_size": 9, "hidden_size": 12, "intermediate_size": 20}
RESULTS = {
    "2 bits": toy_inner(**WHOLE),
    "1 bit, padded": toy_inner(bits=1, **PADDED),
    "everything": toy_inner(topk=64, topk_embeddings=64, **PADDED),
    "floats of a DCT": toy_schema(quantize_1bit=False, **PADDED),
}


@called
@pytest.mark.parametrize("name", RESULTS)
def test_results_and_residuals_equal_torch(device: torch.device, name: str) -> None:
    schema = RESULTS[name]
    params = on(device, schema, 1)
    ours, torchs = (
        ErrorFeedback(schema.results, 1, params, schema.optimizer.decay) for _ in range(2)
    )
    ours._compiled = torchs._compiled = torchs._flat = False
    assert ours._flat
    for step in range(2 if name == "2 bits" else 1):  # a second step begins with a residual
        changes = {
            key: 0.01 * tensor.to(device) for key, tensor in gradients(schema, 1, step).items()
        }
        choose = mock.Mock(side_effect=gpu_choice.choose)
        with mock.patch.object(gpu_choice, "choose", choose):
            sent = ours.compress(PseudoGradient(changes, 1.0, 0.0))
        assert choose.call_count >= schema.results.levels - 1
        with mock.patch.object(triton_gate, "works_on", return_value=False):
            assert torchs.compress(PseudoGradient(changes, 1.0, 0.0)) == sent
        assert bits(ours.state_tensors()) == bits(torchs.state_tensors())


def received(schema: Schema, members: int) -> dict[int, list[bytes]]:
    """Return the payloads of members per level, with tiers in turn."""
    payloads: dict[int, list[bytes]] = {level: [] for level in range(schema.results.levels)}
    for member in range(members):
        tier = member % schema.results.levels
        own = ErrorFeedback(schema.results, tier, tensors(schema, tier, 0), 0.9)
        sent = own.compress(PseudoGradient(gradients(schema, tier, member), 0.01, 0.0))
        for level, data in sent.items():
            payloads[level].append(data)
    return payloads


APPLIED = {
    "sign": toy_schema(weight_decay=0.1, **PADDED),
    "sign, float votes": toy_schema(quantize_1bit=False, **PADDED),
    "mean": toy_inner(divisor="root", outer_lr=0.7, **PADDED),
    "mean of 1 bit over all": toy_inner(bits=1, divisor="all", **WHOLE),
    "larger blocks": toy_inner(topk=32, topk_embeddings=8, chunk=64, vocab_size=80, hidden_size=64),
    "polar": toy_inner(orthogonal_lr=12.0),
    "digits": toy_inner(topk=62, topk_embeddings=4, **PADDED),
}


@called
@pytest.mark.parametrize("name", APPLIED)
def test_applied_parameters_equal_torch_on_cpu(device: torch.device, name: str) -> None:
    schema = APPLIED[name]
    with mock.patch.object(triton_gate, "works_on", return_value=False):
        results = received(schema, 4)

    def applied(place: torch.device, kernels: bool) -> dict[str, bytes]:
        params = on(place, schema, 0)
        apply = Engine(schema, 0, params)._apply
        apply._compiled = False  # type: ignore[attr-defined]
        with mock.patch.object(triton_gate, "works_on", return_value=kernels):
            votes = {
                level: [decode_level(data, schema.results, level, place) for data in payloads]
                for level, payloads in results.items()
            }
            apply.apply(votes, 0.01)
        return bits({key: tensor.cpu() for key, tensor in params.items()})

    expected = applied(CPU, False)
    packed_sparse.usable(device, schema.results.values)  # the proof also adds votes
    summed = mock.Mock(side_effect=packed_sparse.group_sums)
    with mock.patch.object(packed_sparse, "group_sums", summed):
        assert applied(device, True) == expected
    sparse = [level for level in results if not schema.results.is_dense(level)]
    assert summed.call_count == (0 if "float" in name else len(sparse))


@called
@pytest.mark.parametrize("kind", [Values.SIGN, Values.ONE_BIT, Values.TWO_BIT])
def test_sparse_payload_faults_equal_torch(device: torch.device, kind: Values) -> None:
    results = sparse_proof.proof_format(kind)
    draws = torch.Generator().manual_seed(11)
    chosen = sparse_proof.draw_entries(results, draws, empty=True)
    data = encode_entries(results, 0, chosen)
    refused = 0
    for payload in (data, *sparse_proof.spoilt_payloads(data, draws, flips=10)):
        fault = None
        try:
            expected = decode_on_cpu(payload, results, 0)
        except BadPayload as error:
            fault = str(error)
        if fault is None:
            votes = decode_level(payload, results, 0, device)
            assert isinstance(votes, packed_sparse.PackedEntries)
            assert torch.equal(votes.positions, expected.positions)
            continue
        refused += 1
        with pytest.raises(BadPayload) as raised:
            decode_level(payload, results, 0, device)
        assert str(raised.value) == fault
    assert refused > 3


# --- whole levels ---------------------------------------------------------------------------------

PROOFS = {
    "move": lambda device: level_kernels._moves_alike(device),
    "digits of 1 bit": lambda device: packed_dense._counts_alike(device, 1),
    "digits of 2 bits": lambda device: packed_dense._counts_alike(device, 2),
    "sparse signs": lambda device: sparse_proof.alike(device, Values.SIGN),
    "sparse values of 1 bit": lambda device: sparse_proof.alike(device, Values.ONE_BIT),
    "sparse values of 2 bits": lambda device: sparse_proof.alike(device, Values.TWO_BIT),
}


@called
@pytest.mark.parametrize("name", PROOFS)
def test_whole_levels_equal_torch_on_cpu(device: torch.device, name: str) -> None:
    assert PROOFS[name](device)


@pytest.mark.skipif(
    not torch.cuda.is_available() or INTERPRETED, reason="the CPU is what a GPU is compared with"
)
@pytest.mark.parametrize("name", RESULTS)
def test_sparse_payloads_on_gpu_equal_cpu(name: str) -> None:
    schema = RESULTS[name]
    here, there = (
        ErrorFeedback(schema.results, 0, on(place, schema, 0), 0.9) for place in (CPU, GPU)
    )
    tensors = gradients(schema, 0, 1)
    sent = here.compress(PseudoGradient(tensors, 0.01, 0.0))
    changes = {key: tensor.to(GPU) for key, tensor in tensors.items()}
    assert there.compress(PseudoGradient(changes, 0.01, 0.0)) == sent
    for level, data in sent.items():
        for payload in (data, bytes([data[0] ^ 1]) + data[1:], b"\xff" * len(data)):
            read = [votes_or_refusal(payload, schema, level, device) for device in (CPU, GPU)]
            assert read[0] == read[1]


def votes_or_refusal(data: bytes, schema: Schema, level: int, device: torch.device) -> object:
    try:
        votes = decode_level(data, schema.results, level, device)
    except BadPayload as error:
        return str(error)
    return (
        votes.positions.tolist(),
        votes.values.tolist(),
        None if votes.shifts is None else votes.shifts.tolist(),
    )


SPOILT = {
    "move": (level_kernels, "go_ahead", lambda: level_kernels._moves_alike),
    "digits of 2 bits": (
        packed_dense,
        "count",
        lambda: lambda device: packed_dense._counts_alike(device, 2),
    ),
    "sparse values": (
        packed_sparse,
        "count",
        lambda: lambda device: sparse_proof.alike(device, Values.TWO_BIT),
    ),
    "sparse codes": (
        packed_sparse,
        "pack_codes",
        lambda: lambda device: sparse_proof.alike(device, Values.SIGN),
    ),
}


@called
@pytest.mark.parametrize("name", SPOILT)
def test_device_with_different_results_is_refused(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    module, function, proof = SPOILT[name]
    monkeypatch.setattr(module, function, lambda *args, **kwargs: None)
    assert not triton_gate.proven(device, proof(), "differ")
    assert [record.getMessage() for record in caplog.records] == [
        f"Triton kernels on {device} differ; using torch instead"
    ]


# --- as compiled ----------------------------------------------------------------------------------

_LEVEL = {"table": "*i64", "part_of": "*i32"}
_DIGITS = {"TOGETHER": 3, "WIDTH": 7, "RADIX": 5}
_STRINGS = dict.fromkeys(("exponents_at", "signs_at", "sizes_at"), "i32")
_SPARSE = {"COLUMNS": 8, "LANES": 1024, "EXPONENTS": 44, "SIZES": 1}
KERNELS: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "choose": (
        {
            "coefficients": "*fp32",
            "indices": "*i64",
            "values": "*fp32",
            "size": "i32",
            "smallest": "i32",
        },
        {"TOPK": 64, "LANES": 4096, "BITS": 2, "FRACTION": 24, "LEAST": -40, "MOST": 3}
        | {"WHOLE": 0},
    ),
    "triton_levels.check": (
        _LEVEL | {"payload": "*u8", "wrong": "*u8", "digits_at": "i32"},
        {"COLUMNS": 14, "LANES": 1024, "EXPONENTS": 44} | _DIGITS,
    ),
    "triton_levels.apply_mean": (
        _LEVEL
        | {
            "payloads": "*i64",
            "members": "i32",
            "digits_at": "i32",
            "most": "i64",
            "divisors": "*fp64",
        },
        {"COLUMNS": 14, "LANES": 1024} | _DIGITS,
    ),
    "triton_levels.gather": (_LEVEL | {"by": "*fp32"}, {"COLUMNS": 14, "LANES": 1024}),
    "triton_levels.step_by_signs": (_LEVEL | {"by": "*fp32"}, {"COLUMNS": 14, "LANES": 1024}),
    "triton_levels.subtract_sent": (
        {"rows": "*fp32", "indices": "*i64", "values": "*fp32", "size": "i32", "topk": "i32"},
        {"LANES": 1024},
    ),
    "triton_levels.write_codes": (
        dict.fromkeys(("indices", "starts", "numbers"), "*i64")
        | {"values": "*fp32", "digits": "*u8", "exponents": "*u8", "size": "i32"},
        {"LANES": 1024, "LEAST": -40},
    ),
    "triton_sparse.check_sparse": (
        _LEVEL | _STRINGS | {"payload": "*u8", "wrong": "*u8", "digits_at": "i32"},
        _SPARSE | _DIGITS,
    ),
    "triton_sparse.add_sparse": (
        _LEVEL
        | _STRINGS
        | dict.fromkeys(("payloads", "numbers", "sums"), "*i64")
        | {"most": "i64", "digits_at": "i32"},
        _SPARSE | _DIGITS,
    ),
    "triton_sparse.mean_of_sums": (
        _LEVEL | {"numbers": "*i64", "sums": "*i64", "members": "i32", "divisors": "*fp64"},
        {"COLUMNS": 14, "LANES": 1024},
    ),
    "triton_sparse.means_of_sums": (
        {"sums": "*i64", "means": "*fp64", "size": "i32"},
        {"MEAN_BITS": 26, "LANES": 1024},
    ),
    "triton_sparse.write_sparse": (
        _LEVEL
        | _STRINGS
        | dict.fromkeys(("indices", "numbers"), "*i64")
        | {"values": "*fp32", "bits": "*u8", "digits": "*u8"},
        _SPARSE | {"LEAST": -40},
    ),
    "triton_sparse.pack_codes": (
        {"codes": "*u8", "octets": "*u8", "count": "i32", "size": "i32"},
        {"LANES": 1024} | _DIGITS,
    ),
}


ADDITIONS = {"atom.global.gpu.relaxed.add.u64", "red.global.gpu.relaxed.add.u64"}


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
@pytest.mark.parametrize("name", KERNELS)
def test_gpu_kernels_compile_without_fused_rounding(name: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    module, _, own = name.rpartition(".")
    kernels = importlib.import_module(f"aftermath.kernels.{module or 'triton_topk'}")
    kernel: Any = getattr(kernels, own)
    types, constants = KERNELS[name]
    signature = {key: types.get(key, "constexpr") for key in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    binary = compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    assembly = binary.asm["ptx"]
    assert ".target sm_90" in assembly
    assert "fma" not in assembly
    # Integers may be added in any order.
    assert set(re.findall(r"\b(?:atom|red)\.\S+", assembly)) <= ADDITIONS
    if own in ("apply_mean", "mean_of_sums"):
        assert "div.rn.f64" in assembly
    assert binary.asm["cubin"]
