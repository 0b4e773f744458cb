"""Test the names of kinds of devices, which members announce and peers check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from aftermath.replica import device_kind as module
from aftermath.replica.device_kind import device_kind
from aftermath.rules.fields import DeviceKind

CPU = torch.device("cpu")
H200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    device_kind.cache_clear()
    yield
    device_kind.cache_clear()


def kind_of_gpu(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> str:
    gpu = SimpleNamespace(**vars(H200) | changed)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    device_kind.cache_clear()
    return device_kind(torch.device("cuda"))


@pytest.mark.parametrize(
    "changed", [{"name": "NVIDIA H100"}, {"minor": 1}, {"multi_processor_count": 16}]
)
def test_different_gpus_have_different_kinds(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    kind = kind_of_gpu(monkeypatch)
    assert kind == f"NVIDIA H200 9.0, 132 multiprocessors, torch {torch.__version__}"
    assert kind_of_gpu(monkeypatch, **changed) != kind


@pytest.mark.parametrize("name", ["G" * 129, "GPU\x1b[2J", "GPÜ"])
def test_kind_that_peers_would_refuse_is_empty(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert kind_of_gpu(monkeypatch, name=name) == ""


def test_kind_of_this_cpu_can_be_announced() -> None:
    kind = device_kind(CPU)
    assert torch.__version__ in kind
    assert msgspec.convert(kind, DeviceKind) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("model name\t: Fast CPU\nflags\t\t: avx amx_bf16 avx512_bf16\n", "avx512_bf16 amx_bf16"),
        ("model name\t: Fast CPU\nflags\t\t: avx avx2\n", "Fast CPU"),
        ("BogoMIPS\t: 50.00\n", ""),
    ],
)
def test_kind_of_cpu_has_its_model_and_bf16_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, kind: str
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    monkeypatch.setattr(module, "_CPU_INFO", info)
    found = device_kind(CPU)
    assert kind in found
    assert bool(found) == bool(kind)


def test_unknown_devices_have_no_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_CPU_INFO", tmp_path / "missing")
    assert device_kind(CPU) == ""
    assert device_kind(torch.device("mps")) == ""
