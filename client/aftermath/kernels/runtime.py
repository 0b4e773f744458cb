"""Whether kernels can be used here, and the threads they run on.

Decided
- numba is an extra. Without it, or where it cannot work, torch computes the same, and `missing` says why; nobody needs
  a compiler of their own.
- Tasks share nothing, so plain threads run them, as many as torch would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from importlib.util import find_spec

import torch


def needs_compilation() -> bool:
    """Is `missing` going to compile kernels?"""
    if find_spec("numba") is None:
        return False
    try:
        from aftermath.kernels import jit
    except Exception:  # as `missing` is going to say
        return False
    return not jit.is_compiled()


@lru_cache(maxsize=1)
def unavailable_reason() -> str | None:
    """Why kernels cannot be used, or None: then they are compiled by now, which takes half a minute the first time."""
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'aftermath[fast]')"
    try:
        from aftermath.kernels import aggregate, encode, jit  # noqa: F401  these have the kernels

        jit.compile_all()
    except Exception as error:  # whatever a compiler does not like here: torch does the same
        return f"numba does not work here: {str(error).strip().splitlines()[0]}"
    return None


def run_parallel(tasks: Iterable[Callable[[], object]]) -> None:
    """Run all, on as many threads as torch takes. Raises what one of them raised, when none runs any more: what they
    work on may be gone then.
    """
    all_tasks = list(tasks)
    waiting = iter(all_tasks)

    def work() -> None:
        for task in waiting:
            task()

    others = [_pool().submit(work) for _ in range(min(torch.get_num_threads(), len(all_tasks)) - 1)]
    try:
        work()
    finally:
        wait(others)
        for other in others:
            other.result()


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="kernels")
