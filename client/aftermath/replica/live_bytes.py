"""The bytes of all tensors that PyTorch makes and drops inside a block, and the most there were at once.

Decided: storages are counted as operations return them, on any device and without its allocator's help. What an
operation needs for itself while it runs is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`now` and `peak`, of storages made since the block began."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        weakref.finalize(storage, self._drop, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
