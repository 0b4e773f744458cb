"""A device's free memory, the bytes of live tensors, and out-of-memory errors.

On a CPU the system may kill a process instead of refusing memory. Free memory there is what the
kernel reports, within the container's limit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CPU_ALLOCATOR = "can't allocate memory"
_UNLIMITED = 1 << 62
_GROUP = Path("/sys/fs/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device's or the system's allocator ran out of memory."""
    full = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return full or (isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error))


def free_bytes(device: torch.device) -> int:
    """Return the bytes that a device can still allocate."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return min(int(psutil.virtual_memory().available), _left_of_the_group())


def give_back(device: torch.device) -> None:
    """Have the device's allocator release its cache."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class LiveBytes(TorchDispatchMode):
    """Count the bytes `now` and at the `peak` of all tensors that PyTorch creates in a block.

    It counts the storages that operations return, on any device, but not an operation's temporary
    memory.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = storage.nbytes()
        if key in self._counted:
            return
        self._counted.add(key)
        weakref.finalize(storage, self._drop, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _drop(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.now -= size


def _left_of_the_group() -> int:
    """Return the free bytes of a container's limit. Cached files count as free."""
    limit, used = (_number(_GROUP / name, str) for name in ("memory.max", "memory.current"))
    cached = _number(
        _GROUP / "memory.stat", lambda text: text.partition("inactive_file ")[2].split()[0]
    )
    return _UNLIMITED if limit is None or used is None else max(0, limit - used + (cached or 0))


def _number(path: Path, parse: Callable[[str], str]) -> int | None:
    try:
        return int(parse(path.read_text()))
    except (OSError, ValueError, IndexError):
        return None
