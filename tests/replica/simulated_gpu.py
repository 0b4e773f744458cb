"""Imitate a GPU on a machine without one: tensors report `cuda:0`, and the CPU computes them.

`OnGpu` carries a CPU tensor. Every operation reaches it below autograd, so backward passes work,
and operations on tensors of both devices raise as on a GPU.
"""

# Only Python sees the device: torch's engine needs a driver's stream for tensors it believes to be
# on a GPU. So `to`, `cpu`, `numpy` and other reads of the device are answered here. A scalar tensor
# may come from the CPU, and indices may not: a GPU copies indices at each use.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._functorch.vmap import vmap_increment_nesting
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from aftermath.optim.dct_basis import basis

GPU = torch.device("cuda:0")
_CPU = torch.device("cpu")
_aten = torch.ops.aten
_ACROSS = {_aten.copy_.default, _aten._to_copy.default}
"""Operations whose arguments may be on different devices."""


class OnGpu(Tensor):
    """A tensor that Python sees as a tensor on the GPU."""

    inner: Tensor  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGpu:
        self: OnGpu = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
        )
        self.inner = inner
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        return _computed(func, args, dict(kwargs or {}))


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return an operation's result on the device that a GPU would use. Raises RuntimeError for
    tensors on two devices.
    """
    kwargs.pop("pin_memory", None)
    tensors = list(_tensors_in((*args, *kwargs.values())))
    there = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    if not there and kwargs.get("device") is None:
        return func(*args, **kwargs)
    strangers = [tensor for tensor in tensors if not isinstance(tensor, OnGpu) and tensor.dim()]
    if there and strangers and func not in _ACROSS:
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, but found {GPU} and {_CPU}"
        )
    on_gpu = bool(there) if func is not _aten.copy_.default else isinstance(args[0], OnGpu)
    if (device := kwargs.get("device")) is not None:
        on_gpu = torch.device(device).type == "cuda" or _in_backward() or bool(_vmaps)
        kwargs["device"] = _CPU
    arguments = {name: _with_tensors(_inner, value) for name, value in kwargs.items()}
    out = func(*_with_tensors(_inner, args), **arguments)
    if not on_gpu:
        return out
    # an operation in place returns its argument
    before = {id(tensor.inner): tensor for tensor in there}
    return _with_tensors(
        lambda tensor: before[id(tensor)] if id(tensor) in before else OnGpu(tensor), out
    )


# torch's own `tree_map` knows every kind of container and takes five times as long as the
# operations themselves.
def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _with_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a copy of a tensor, or of lists and tuples, with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_with_tensors(change, one) for one in value])
    return value


def _inner(tensor: Tensor) -> Tensor:
    return tensor.inner if isinstance(tensor, OnGpu) else tensor


def _in_backward() -> bool:
    """Return whether the engine runs. It creates tensors where it expects gradients: here on the
    CPU.
    """
    return torch._C._current_graph_task_id() >= 0


_vmaps: list[int] = []
"""The levels of `vmap` that are being computed. Its rules create tensors where they expect their
arguments: here on the CPU.
"""


@contextlib.contextmanager
def _nested(*args: Any) -> Iterator[int]:
    """Enter a level of `vmap`, and note it."""
    with vmap_increment_nesting(*args) as level:
        _vmaps.append(level)
        try:
            yield level
        finally:
            _vmaps.pop()


class _Operations(TorchDispatchMode):
    """Creates tensors on the GPU if a call without GPU tensors asks for that."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        return _computed(func, args, dict(kwargs or {}))


class _Places(TorchFunctionMode):
    """Answers the calls that torch decides by the device of a tensor."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        options = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_gpu(options.get("device")):
            return func(*args, **options | {"device": None}).to(GPU)
        first: Any = args[0] if args else None
        if func is Tensor.pin_memory:
            return first.clone() if not isinstance(first, OnGpu) else _refuse("pin")
        if func is Tensor.to and isinstance(first, Tensor):
            return _copied_to(first, args[1:], options)
        if not isinstance(first, OnGpu):
            return func(*args, **options)
        if func in (Tensor.cpu, Tensor.tolist):
            with torch.no_grad():
                return func(_aten._to_copy.default(first, device=_CPU))
        if func in (Tensor.numpy, Tensor.__array__):
            return _refuse("convert to numpy")
        return func(*args, **options)


def _copied_to(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return `tensor.to(...)`: the tensor itself if nothing changes, else a copy on the other
    device.
    """
    device, dtype, _, _ = torch._C._nn._parse_to(
        *args, **{k: v for k, v in kwargs.items() if k != "copy"}
    )
    dtype = dtype or tensor.dtype
    goes = GPU if _is_gpu(device) or (device is None and isinstance(tensor, OnGpu)) else _CPU
    if goes.type == tensor.device.type and dtype == tensor.dtype and not kwargs.get("copy"):
        return tensor
    out: Tensor = _aten._to_copy.default(tensor, dtype=dtype, device=goes)
    return out


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _refuse(what: str) -> Any:
    raise TypeError(f"can't {what} a tensor that is on {GPU}; copy it to host memory first")


@contextlib.contextmanager
def gpu_at_hand() -> Iterator[torch.device]:
    """Make `cuda:0` a device inside the block. Use its tensors only there."""
    basis.cache_clear()
    vmaps = mock.patch("torch._functorch.vmap.vmap_increment_nesting", _nested)
    with vmaps, mock.patch("torch.cuda._lazy_init"), _Places(), _Operations():  # type: ignore[no-untyped-call]
        yield GPU
    basis.cache_clear()  # for tensors on the GPU


def without_gpu(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a context, inside `gpu_at_hand`, without a GPU, for code that gets no tensor on it."""

    def alone(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return work(*args, **kwargs)

    return alone
