"""The values of `--device`. Free of torch, so a mistake is reported before torch loads."""

from __future__ import annotations

import re

from aftermath.base.errors import UsageError


def indices_named(name: str) -> list[int]:
    """Return the indices of CUDA devices in auto, cpu, mps, cuda or cuda:X,Y. Raises UsageError."""
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3}(,\d{1,3})*)?", name) is None:
        raise UsageError(
            f"--device {name!r} is no device", "It is auto, cpu, mps, cuda or cuda:X,Y, for example cuda:0"
        )
    indices = [int(index) for index in re.findall(r"\d+", name)]
    if len(set(indices)) < len(indices):
        raise UsageError(f"--device {name} names a device twice", "Name every device once, for example cuda:0,1")
    return indices
