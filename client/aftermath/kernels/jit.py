"""Compile functions over arrays with numba for this processor, and cache the machine code."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from llvmlite import binding
from numba.core import cgutils
from numba.extending import intrinsic

from aftermath.base.files import cache_directory
from aftermath.base.locks import alone_in

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_COMPLETE = "whole"  # this file marks a cache directory in which all kernels are compiled

_typed: list[tuple[Any, str]] = []


def _cache_path() -> Path:
    """Return the cache directory for these sources, this compiler and this processor."""
    # numba checks only a kernel's own file, not the kernels it calls. So hash all sources, also for
    # NUMBA_CACHE_DIR, which may contain an older client's kernels.
    key = hashlib.sha256(f"{_HERE} {numba.__version__} {binding.get_host_cpu_name()}".encode())
    for source in sorted(_HERE.glob("*.py")):
        key.update(source.read_bytes())
    if numba.config.BOUNDSCHECK:
        key.update(b"bounds are checked")
    default = _HERE / "__pycache__" if os.access(_HERE, os.W_OK) else cache_directory("kernels")
    chosen = numba.config.CACHE_DIR or default
    return Path(chosen) / key.hexdigest()[:16]


CACHE_PATH = _cache_path()
numba.config.CACHE_DIR = str(CACHE_PATH)


def kernel(types: str | None = None, fused: bool = False) -> Callable[[F], F]:
    """Return a decorator that compiles a function.

    With `types`, in numba's notation, `compile_all` compiles it when a member starts. Without
    them, the first kernel that calls it does. `fused` allows fused multiply-add; without it the
    compiler changes no rounding.
    """

    def compiled(function: F) -> F:
        try:
            compiled_function = _compiler(fused, cache=True)(function)
        except RuntimeError:  # no cache directory is writable
            compiled_function = _compiler(fused, cache=False)(function)
        if types is not None:
            _typed.append((compiled_function, types))
        return compiled_function  # type: ignore[no-any-return]

    return compiled


def is_compiled() -> bool:
    """Return whether the cache has all kernels, so that `compile_all` is fast."""
    return (CACHE_PATH / _COMPLETE).exists()


def compile_all() -> None:
    """Load all typed kernels from the cache, or compile them. Compile again if it is damaged."""
    with contextlib.suppress(OSError):
        CACHE_PATH.mkdir(parents=True, exist_ok=True)
    # One process compiles at a time, and the others load its result.
    with alone_in(CACHE_PATH):
        try:
            _compile()
        except Exception:  # a damaged file can raise anything
            for file in Path(numba.config.CACHE_DIR).rglob("*.nb?"):
                file.unlink(missing_ok=True)
            _compile()
        with contextlib.suppress(OSError):
            (CACHE_PATH / _COMPLETE).touch()


def _compile() -> None:
    for function, types in _typed:
        if not function.signatures:
            function.compile(types)
            function.disable_compile()


def _compiler(fused: bool, cache: bool) -> Any:
    return numba.njit(
        nogil=True, error_model="numpy", fastmath={"contract"} if fused else False, cache=cache
    )


def _to_pointer(_: Any, address: Any) -> Any:
    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return numba.types.voidptr(address), code


_pointer: Any = intrinsic(_to_pointer)


@kernel()
def array_at(address: int, size: int, dtype: Any) -> Any:
    """Return the array of `size` numbers at an address. The caller keeps it alive."""
    return numba.carray(_pointer(address), (size,), dtype)


def _to_word(_: Any, address: Any) -> Any:
    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        word = cgutils.ir.IntType(64).as_pointer()
        return builder.load(builder.inttoptr(arguments[0], word), align=1)

    return numba.types.uint64(address), code


word_at: Any = intrinsic(_to_word)
"""Return the uint64 at an address, which need not be aligned."""
