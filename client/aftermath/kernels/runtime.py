"""Say whether numba kernels work on this machine, and run their tasks on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from importlib.util import find_spec

import torch


def needs_compilation() -> bool:
    """Return whether `unavailable_reason` has to compile kernels first."""
    if find_spec("numba") is None:
        return False
    try:
        from aftermath.kernels import jit
    except Exception:  # `unavailable_reason` reports it
        return False
    return not jit.is_compiled()


@lru_cache(maxsize=1)
def unavailable_reason() -> str | None:
    """Return why kernels cannot be used, or None once all are compiled.

    The first call on a machine compiles them, which takes half a minute.
    """
    # numba is optional: without it torch computes the same, and users need no compiler.
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'aftermath[fast]')"
    try:
        from aftermath.kernels import (  # noqa: F401  they define the kernels
            aggregate,
            dense,
            dense_encode,
            jit,
            polar,
            sparse_encode,
        )

        jit.compile_all()
    except Exception as error:  # any compiler error: torch computes the same
        return f"numba does not work here: {str(error).strip().splitlines()[0]}"
    return None


def run_parallel(tasks: Iterable[Callable[[], object]]) -> None:
    """Run all tasks on as many threads as torch uses, and raise the first error.

    Return or raise only when no task is running, because the caller may then free their arrays.
    """
    # Tasks share nothing and release the interpreter's lock, so plain threads suffice.
    all_tasks = list(tasks)
    waiting = iter(all_tasks)

    def work() -> None:
        for task in waiting:
            task()

    helpers = [
        _pool().submit(work) for _ in range(min(torch.get_num_threads(), len(all_tasks)) - 1)
    ]
    try:
        work()
    finally:
        wait(helpers)
        for helper in helpers:
            helper.result()


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="kernels")
