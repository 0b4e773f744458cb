"""Test which devices the three options select, and which combinations are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.parallel.launch import threads_of
from aftermath.parallel.mesh import Mesh, mesh_of
from aftermath.train.device_options import device_mesh
from aftermath.train.settings import TrainSettings


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has four GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("name", "data", "tensor", "devices", "rows"),
    [
        ("cpu", 0, 1, ["cpu"], 1),
        ("cpu", 2, 1, ["cpu"] * 2, 2),
        ("cpu", 0, 2, ["cpu"] * 2, 1),
        ("cpu", 2, 2, ["cpu"] * 4, 2),
        ("auto", 0, 1, ["cuda"], 1),
        ("cuda", 2, 1, ["cuda:0", "cuda:1"], 2),
        ("auto", 2, 2, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"], 2),
        ("cuda:2", 0, 1, ["cuda:2"], 1),
        ("cuda:2,0", 0, 1, ["cuda:2", "cuda:0"], 2),
        ("cuda:0,1,2,3", 0, 2, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"], 2),
        ("cuda:0,1", 0, 2, ["cuda:0", "cuda:1"], 1),
    ],
)
def test_mesh_of_valid_options_is_built(
    gpus: None, name: str, data: int, tensor: int, devices: list[str], rows: int
) -> None:
    mesh = mesh_of(name, data, tensor)
    assert mesh == Mesh(tuple(map(torch.device, devices)), rows, tensor)
    assert mesh.alone == (len(devices) == 1)


@pytest.mark.parametrize(
    ("name", "data", "tensor", "says"),
    [
        ("cuda:0,0", 0, 1, "--device cuda:0,0 names a device twice"),
        (
            "cuda:0,1,2",
            2,
            1,
            "names 3 devices, but --data-parallelism 2 with --tensor-parallelism 1 needs 2",
        ),
        (
            "cuda:0,1,2",
            0,
            2,
            "names 3 devices, but --data-parallelism 1 with --tensor-parallelism 2 needs 2",
        ),
        ("cuda:1", 2, 1, "names 1 device, but --data-parallelism 2"),
        ("cpu", 64, 64, "at most .* ranks, not 4096"),
        ("cpu,cpu", 0, 1, "is not a valid device"),
    ],
)
def test_mesh_of_contradicting_options_is_refused(
    gpus: None, name: str, data: int, tensor: int, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        mesh_of(name, data, tensor)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("cuda", 8, "8 ranks need 8 GPUs, but this machine has 4"),
        ("cuda:0,7", 0, "cuda:7 does not exist"),
    ],
)
def test_mesh_of_missing_devices_is_refused(gpus: None, name: str, data: int, says: str) -> None:
    with pytest.raises(Unsuitable, match=says):
        mesh_of(name, data, 1)


def test_multi_device_passes_with_compile_are_refused() -> None:
    settings = TrainSettings(run_id="mine", device="cpu", compile="on")
    assert device_mesh(settings).alone
    with pytest.raises(UsageError, match="--compile on does not work with several devices"):
        device_mesh(replace(settings, tensor_parallelism=2))


def test_ranks_on_one_cpu_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    two = mesh_of("cpu", 2, 1)
    assert [threads_of(two, 0), threads_of(two, 5), threads_of(mesh_of("cpu", 0, 1), 0)] == [
        3,
        5,
        0,
    ]
