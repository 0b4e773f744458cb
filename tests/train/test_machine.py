"""Test the machine's figures, with and without NVML. Reporting neither blocks nor ends a member."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.train.machine import MachineProbe, report_machine_use

ASKED = "import json, msgspec, pathlib; from aftermath.train.machine import MachineProbe; "
ASKED += "look = MachineProbe(pathlib.Path()); "
ASKED += "print(json.dumps(msgspec.to_builtins(look().gpus)))"

NVML = """
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
static int devices[2] = {0, 1};
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) { *device = &devices[number]; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  memory->total = 8ull << 30; memory->used = 5ull << 30; memory->free = 3ull << 30; return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, Rates *rates) { rates->gpu = 75; rates->memory = 10; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { *degrees = 60; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
  *milliwatts = 250500; return *(int *)device ? 3 : 0;  /* the second does not support it */
}
"""
"""NVML as a library of a driver that has two GPUs, for machines that have none; the figures are
made up.
"""


def test_machine_figures_are_plausible(tmp_path: Path) -> None:
    figures = MachineProbe(tmp_path / "not" / "there" / "yet")()
    assert 0 <= figures.cpu <= 100
    assert psutil.Process().memory_info().rss / 4 < figures.resident < psutil.virtual_memory().total
    assert 0 < figures.available < psutil.virtual_memory().total
    assert 0 < figures.disk_free <= shutil.disk_usage(tmp_path).total
    assert figures.network_sent >= 0


def test_memory_includes_other_member_processes(tmp_path: Path) -> None:
    look = MachineProbe(tmp_path)
    alone = look().resident
    hold = "held = bytearray(200_000_000); held[::4096] = b'x' * len(held[::4096]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        together = look().resident
        other.communicate(b"\n")
    assert together > alone + 150_000_000


def test_machine_events_continue_until_end(tmp_path: Path) -> None:
    events: list[event_types.Event] = []
    third = threading.Event()

    def hear(event: event_types.Event) -> None:
        events.append(event)
        if len(events) == 3:
            third.set()

    with report_machine_use(Events(lambda: 0.0, [hear]), tmp_path, 0.01):
        assert third.wait(60)
    assert all(isinstance(event, event_types.Machine) for event in events)
    assert all(
        thread.name != "machine" or not thread.is_alive()
        for thread in _ended(threading.enumerate())
    )


def _ended(threads: list[threading.Thread]) -> list[threading.Thread]:
    for thread in threads:
        if thread.name == "machine":
            thread.join(60)
    return threads


def gpus(**variables: str) -> list[dict[str, float]]:
    line = [sys.executable, "-c", ASKED]
    completed = subprocess.run(
        line, env=os.environ | variables, capture_output=True, text=True, check=True
    )
    devices: list[dict[str, float]] = json.loads(completed.stdout)
    return devices


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make a library of")
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True
    )
    return tmp_path


def test_gpu_figures_equal_nvml_and_missing_are_left_out(driver: Path) -> None:
    each = {
        "memory_used": 5 << 30,
        "memory_total": 8 << 30,
        "utilization": 75.0,
        "temperature": 60.0,
    }
    assert gpus(LD_LIBRARY_PATH=str(driver)) == [
        {"number": 0, **each, "power": 250.5},
        {"number": 1, **each},
    ]


def test_unusable_gpu_driver_gives_no_figures(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    assert gpus(LD_LIBRARY_PATH=str(tmp_path)) == []
