"""How passes are computed, as options name it. Free of torch, for commands that load none.

These are a member's own choices: what it sends and applies is exact fp32 in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["auto", "fp32", "bf16"]
Compile = Literal["auto", "on", "off"]

PRECISION = (
    "What passes are computed in; weights, gradients and their sums stay fp32. auto: bf16 on a GPU that has it, fp32 "
    "on a CPU."
)
COMPILE = (
    "Compile the model with torch.compile, before the member joins; auto: on CUDA alone. If it fails, that is said, "
    "and training continues without it."
)


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of passes on a device."""

    bf16: bool = False
    compiled: bool = False


PLAIN = Arithmetic()
