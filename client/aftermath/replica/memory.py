"""A device's free memory, and whether an allocator has refused.

On a CPU the system may kill a process rather than refuse memory. Free memory there is what the
kernel, or the container's limit, reports.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import torch

_CPU_ALLOCATOR = "can't allocate memory"
_UNLIMITED = 1 << 62
_GROUP = Path("/sys/fs/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device's or the system's allocator has refused."""
    full = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return full or (isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error))


def free_bytes(device: torch.device) -> int:
    """Return the bytes that a device can still allocate."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return min(int(psutil.virtual_memory().available), _left_of_the_group())


def give_back(device: torch.device) -> None:
    """Have the device's allocator release its cache."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _left_of_the_group() -> int:
    """Return the free bytes of a container's limit. Cached files count as free."""
    limit, used = (_number(_GROUP / name, str) for name in ("memory.max", "memory.current"))
    cached = _number(_GROUP / "memory.stat", lambda text: text.partition("inactive_file ")[2].split()[0])
    return _UNLIMITED if limit is None or used is None else max(0, limit - used + (cached or 0))


def _number(path: Path, found: Callable[[str], str]) -> int | None:
    try:
        return int(found(path.read_text()))
    except (OSError, ValueError, IndexError):
        return None
