"""Report CPU, memory, disk, network and GPU use every few seconds, as the event `machine`.

A separate thread reads them, only if an option asks for them. `resident` counts all processes of
the member, including ranks. All other figures are of the whole machine. GPU figures come from NVML
and are absent without an NVIDIA driver.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

from aftermath.events import event_types
from aftermath.events.stream import Events

SECONDS = 15.0  # between two reports
T = TypeVar("T")


@contextlib.contextmanager
def report_machine_use(events: Events, directory: Path, seconds: float = SECONDS) -> Iterator[None]:
    """Emit a report every `seconds` while the block runs. `directory` is on the reported disk."""
    over = threading.Event()

    def work() -> None:
        probe = MachineProbe(directory)
        while not over.wait(seconds):
            events.emit(probe())

    threading.Thread(target=work, name="machine", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class MachineProbe:
    """Measures this machine each time it is called."""

    def __init__(self, directory: Path) -> None:
        self._directory = next(
            path for path in (directory.absolute(), *directory.absolute().parents) if path.exists()
        )
        self._process = psutil.Process()
        self._gpus = _gpus()
        self._sent, self._received = _network()
        psutil.cpu_percent()  # starts the interval: each call measures the time since the last

    def __call__(self) -> event_types.Machine:
        """Return the current figures. A figure that the system does not provide is 0."""
        sent, received = _network()
        return event_types.Machine(
            cpu=psutil.cpu_percent(),
            resident=self._resident(),
            available=int(psutil.virtual_memory().available),
            disk_free=_or_none(lambda: int(psutil.disk_usage(str(self._directory)).free)) or 0,
            network_sent=max(0, sent - self._sent),
            network_received=max(0, received - self._received),
            gpus=[_gpu(number, handle) for number, handle in enumerate(self._gpus)],
        )

    def _resident(self) -> int:
        family = [self._process, *(_or_none(lambda: self._process.children(recursive=True)) or [])]
        memories = [_or_none(process.memory_info) for process in family]
        return sum(int(memory.rss) for memory in memories if memory)


def _network() -> tuple[int, int]:
    """Return the bytes sent and received since boot, over all interfaces except loopback."""
    counted = _or_none(lambda: psutil.net_io_counters(pernic=True)) or {}
    leading = [count for name, count in counted.items() if not name.startswith("lo")]
    return sum(count.bytes_sent for count in leading), sum(count.bytes_recv for count in leading)


def _gpus() -> list[Any]:
    """Return NVML's handles of the GPUs, in NVML's order, which may differ from CUDA's."""
    try:
        pynvml.nvmlInit()
        return [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return []


def _gpu(number: int, handle: Any) -> event_types.Gpu:
    memory = _or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    rates = _or_none(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    heat = _or_none(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    power = _or_none(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
    return event_types.Gpu(
        number=number,
        memory_used=memory and int(memory.used),
        memory_total=memory and int(memory.total),
        utilization=rates and float(rates.gpu),
        temperature=None if heat is None else float(heat),
        power=None if power is None else power / 1000,
    )


def _or_none(ask: Callable[[], T]) -> T | None:
    """Return the result of `ask`, or None if the process, directory or driver fails."""
    try:
        return ask()
    except (psutil.Error, OSError, pynvml.NVMLError):
        return None
