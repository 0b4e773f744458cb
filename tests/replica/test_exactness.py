"""Exact devices: one place configures them, and a member checks and proves them before it joins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from aftermath.base.errors import Unsuitable
from aftermath.replica.exactness import (
    exact_device,
    is_exact,
    keep_compiled,
    prove,
    prove_cpu,
    set_exact,
)
from replica import simulated_gpu
from replica.simulated_gpu import gpu_at_hand

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
)


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the machine's variables, and restore them afterwards."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def test_set_exact_sets_all_flags_before_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    assert not is_exact()
    assert exact_device("cpu") == torch.device("cpu")
    assert is_exact()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    assert [os.environ[name] for name in VARIABLES] == [":4096:8", "0", "0"]
    for name in VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(name, "something else")
            assert not is_exact()


def test_deterministic_workspace_setting_is_unchanged() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    set_exact()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize(
    ("name", "value"),
    [(VARIABLES[0], ":0:0"), (VARIABLES[1], "1"), (VARIABLES[2], "1"), (VARIABLES[0], "")],
)
def test_inexact_environment_is_refused_by_name(name: str, value: str) -> None:
    os.environ[name] = value
    with pytest.raises(Unsuitable, match=rf"(?s)^{name} is .*Unset it"):
        exact_device("cpu")


class _Fewer(TorchDispatchMode):
    """Multiply in fp32 with factors of `bits` bits, like bfloat16 and TF32."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = torch.tensor(bits)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default and args[0].dtype == torch.float32:
            args = tuple(self._rounded(one) for one in args)
        return func(*args, **(kwargs or {}))

    def _rounded(self, tensor: Tensor) -> Tensor:
        mantissa, exponent = torch.frexp(tensor)
        return torch.ldexp(torch.ldexp(mantissa, self._bits).round(), exponent - self._bits)


@pytest.mark.parametrize("bits", [8, 11])
def test_cpu_with_reduced_precision_products_is_refused(bits: int) -> None:
    prove_cpu()
    with _Fewer(24):
        prove_cpu()
    with _Fewer(bits), pytest.raises(Unsuitable, match="reduced precision"):
        exact_device("cpu")


def test_device_with_native_float64_passes_the_check() -> None:
    with gpu_at_hand() as gpu:
        prove(gpu)


@pytest.mark.parametrize("bits", [24, 40, 51, 52])
def test_device_emulating_float64_is_refused(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Emulated products or sums keep fewer than 53 bits."""
    plain = simulated_gpu._computed

    def emulated(func: object, args: tuple[Tensor, ...], kwargs: dict[str, object]) -> object:
        out = plain(func, args, kwargs)
        products = torch.ops.aten.mm.default, torch.ops.aten.bmm.default
        if func in products and isinstance(out, simulated_gpu.OnGpu) and out.dtype == torch.float64:
            mantissa, exponent = torch.frexp(out.inner)
            out.inner.copy_(
                torch.ldexp(torch.ldexp(mantissa, torch.tensor(bits)).round(), exponent - bits)
            )
        return out

    monkeypatch.setattr(simulated_gpu, "_computed", emulated)
    with (
        gpu_at_hand() as gpu,
        pytest.raises(Unsuitable, match=r"cuda:0 does not compute .* exactly"),
    ):
        prove(gpu)


@pytest.mark.parametrize(
    ("home", "value", "is_kept"),
    [("home", None, True), ("home", "elsewhere", False), ("file", None, False)],
    ids=["unset", "set", "no room for a cache"],
)
def test_keep_compiled_names_user_cache_unless_set_or_unwritable(
    home: str, value: str | None, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
    for name in CACHES:
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    keep_compiled()
    own = {name: str(tmp_path / home / "aftermath" / part) for name, part in CACHES.items()}
    assert {name: os.environ.get(name) for name in CACHES} == (
        own if is_kept else dict.fromkeys(CACHES, value)
    )
    assert all(Path(place).is_dir() is is_kept for place in own.values())
