"""Count what a GPU would run: kernel launches, and reads that wait for the device.

Tensors stay on the CPU and Triton interprets its kernels. Each operation of torch that computes
counts as one launch, and so does each kernel, whatever its grid.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime import interpreter

_aten = torch.ops.aten
_READS = {
    _aten._local_scalar_dense.default,
    _aten.equal.default,
    _aten.nonzero.default,
    _aten.is_nonzero.default,
}
"""Operations that wait for the device."""
_FREE = ("empty", "detach", "alias", "set_", "resize", "lift_fresh", "_to_copy")
"""Name prefixes of operations that launch nothing on the device. Copies are counted separately."""


class Launches(TorchDispatchMode):
    """Counts by name: operations and kernels in `launches`, waiting reads in `reads`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        name = func._schema.name.removeprefix("aten::")
        masks = func is _aten.index.Tensor and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if func in _READS or masks:
            self.reads[name] += 1
        elif not (_is_view(func) or name.startswith(_FREE) or name.startswith("new_empty")):
            self.launches[name] += 1
        return func(*args, **dict(kwargs or {}))


@contextlib.contextmanager
def launches_counted() -> Iterator[Launches]:
    """Count the launches of the block. Interpreted kernels count once, without their own work."""
    launches = Launches()
    launch = interpreter.GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.launches[f"triton {self.fn.__name__}"] += 1
        with _disable_current_modes():
            return launch(self, *args, **kwargs)

    with mock.patch.object(interpreter.GridExecutor, "__call__", counted), launches:
        yield launches


def _is_view(func: Any) -> bool:
    """Return whether an operation only returns a view of its argument."""
    returns = func._schema.returns
    aliases = [kind.alias_info for kind in returns if kind.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
