"""The values of `--device`, `--precision` and `--compile`, checked before torch loads.

Each member chooses them for itself: results and the apply are exact fp32 in any case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from aftermath.base.errors import UsageError

Precision = Literal["auto", "fp32", "bf16"]
Compile = Literal["auto", "on", "off"]

PRECISION = (
    "Precision of forward and backward passes. Weights, gradients and their sums stay fp32. auto: bf16 on a GPU that "
    "supports it, fp32 on a CPU."
)
COMPILE = (
    "Compile the model with torch.compile before training starts. auto: only on CUDA. If compilation fails, a "
    "warning is printed and training continues without it."
)


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of passes on a device."""

    bf16: bool = False
    compiled: bool = False


PLAIN = Arithmetic()


def indices_named(name: str) -> list[int]:
    """Return the CUDA indices in auto, cpu, mps, cuda or cuda:X,Y, or raise UsageError."""
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3}(,\d{1,3})*)?", name) is None:
        raise UsageError(
            f"--device {name!r} is not a valid device",
            "Use auto, cpu, mps, cuda or cuda:X,Y, for example cuda:0",
        )
    indices = [int(index) for index in re.findall(r"\d+", name)]
    if len(set(indices)) < len(indices):
        raise UsageError(
            f"--device {name} names a device twice", "Name each device once, for example cuda:0,1"
        )
    return indices
