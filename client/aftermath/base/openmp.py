"""How the threads that PyTorch computes with wait for one another: set before it is loaded, which reads it once.

Decided: each looks for the next piece of work a thousand times, some microseconds, and then sleeps. GNU's OpenMP, with
which PyTorch is built for Linux, looks 300,000 times, all of which is lost where something else has the cores: next to
one busy process on two cores a small model trained half as fast, and where that one had a share of its own, as another
terminal's has, a fiftieth. Alone it is as fast (`benchmarks/spinning.py`). To sleep at once (OMP_WAIT_POLICY=passive)
costs a fifth of that.
"""

from __future__ import annotations

import os

SPINS = "1000"
BY_THE_USER = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""What says how they wait, by its name in the environment."""


def sleep_soon() -> None:
    """Let them sleep soon, unless the environment says how they wait."""
    if not any(name in os.environ for name in BY_THE_USER):
        os.environ[BY_THE_USER[0]] = SPINS
