"""How the threads that PyTorch computes with wait for one another: set before it is loaded, which reads it once.

Decided: each looks for the next piece of work a thousand times, some microseconds, and then sleeps. GNU's OpenMP, with
which PyTorch is built for Linux, looks 300,000 times, all of which is lost where something else has the cores: with one
other busy process on two cores, a small model trained at a fifth of the speed (`benchmarks/spinning.py`). On a machine
of its own it is as fast.
"""

from __future__ import annotations

import os

SPINS = "1000"
_BY_THE_USER = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def sleep_soon() -> None:
    """Let them sleep soon, unless the environment says how they wait."""
    if not any(name in os.environ for name in _BY_THE_USER):
        os.environ[_BY_THE_USER[0]] = SPINS
