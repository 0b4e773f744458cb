"""Turns functions over arrays into kernels: compiled by numba for the processor at hand.

Decided
- A kernel has its types written beside it, so it is compiled when a member starts and not in its first round. That
  takes half a minute, so it is done by one process at a time, and what was compiled is kept for all later starts:
  beside the sources, as Python keeps what it compiles, or in the user's cache directory where these cannot be written.
- The directory is that of these very sources, compiler and processor, also inside of one that the user chose
  (NUMBA_CACHE_DIR): numba itself looks at the file of a kernel and not at those of the kernels it calls.
- Kernels release the interpreter's lock.
- No rounding is left to the compiler, but where a kernel asks for fused multiplications and additions.
"""

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
_COMPLETE = "whole"  # a file that says so of what else is in the directory

_typed: list[tuple[Any, str]] = []


def _cache_path() -> Path:
    """Where kernels are kept that these sources make, with this compiler for this processor."""
    key = hashlib.sha256(f"{_HERE} {numba.__version__} {binding.get_host_cpu_name()}".encode())
    for source in sorted(_HERE.glob("*.py")):
        key.update(source.read_bytes())
    if numba.config.BOUNDSCHECK:
        key.update(b"bounds are checked")
    beside = os.access(_HERE, os.W_OK)
    chosen = numba.config.CACHE_DIR or (_HERE / "__pycache__" if beside else cache_directory("kernels"))
    return Path(chosen) / key.hexdigest()[:16]


CACHE_PATH = _cache_path()
numba.config.CACHE_DIR = str(CACHE_PATH)


def kernel(types: str | None = None, fused: bool = False) -> Callable[[F], F]:
    """Compiles a function: for these types, in numba's notation, by `prepare`; else for what kernels call it with."""

    def compiled(function: F) -> F:
        try:
            found = _compiler(fused, cache=True)(function)
        except RuntimeError:  # there is no directory that can be written
            found = _compiler(fused, cache=False)(function)
        if types is not None:
            _typed.append((found, types))
        return found  # type: ignore[no-any-return]

    return compiled


def is_compiled() -> bool:
    """Were all kernels compiled before, so that `prepare` takes no time?"""
    return (CACHE_PATH / _COMPLETE).exists()


def compile_all() -> None:
    """Compile all kernels that have types, or take them from where they are kept; anew if that is damaged."""
    with contextlib.suppress(OSError):
        CACHE_PATH.mkdir(parents=True, exist_ok=True)
    with alone_in(CACHE_PATH):
        try:
            _compile()
        except Exception:  # whatever reading a damaged file raises
            for file in Path(numba.config.CACHE_DIR).rglob("*.nb?"):
                file.unlink(missing_ok=True)
            _compile()
        with contextlib.suppress(OSError):
            (CACHE_PATH / _COMPLETE).touch()


def _compile() -> None:
    for found, types in _typed:
        if not found.signatures:
            found.compile(types)
            found.disable_compile()


def _compiler(fused: bool, cache: bool) -> Any:
    return numba.njit(nogil=True, error_model="numpy", fastmath={"contract"} if fused else False, cache=cache)


def _to_pointer(_: Any, address: Any) -> Any:
    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return numba.types.voidptr(address), code


_pointer: Any = intrinsic(_to_pointer)


@kernel()
def array_at(address: int, size: int, dtype: Any) -> Any:
    """Within kernels: so many numbers that a caller keeps at this address."""
    return numba.carray(_pointer(address), (size,), dtype)
