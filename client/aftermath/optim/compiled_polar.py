"""Compiled CPU kernels for `optim.integer_polar`, which has the constants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from aftermath.kernels.runtime import run_parallel

_AT_ONCE = 4  # matrices per task


class Drawn(NamedTuple):
    """The numbers of 24 bits that make the offsets of each step, int64 [steps, n]."""

    squares: Tensor
    factors: Tensor
    rows: Tensor
    columns: Tensor


def polar(
    matrices: Tensor,
    *,
    first_length: float,
    steps: Sequence[tuple[float, ...]],
    drawn: Drawn,
    unit: float,
) -> tuple[Tensor, list[bool]]:
    """Return the polar factors of fp32 matrices [n, short, long] on the CPU.

    Also return which matrices are within the bounds. The others' factors have no meaning. The other
    arguments are those of `kernels.polar`.
    """
    from aftermath.kernels import polar as kernels

    kernel: Any = kernels.polar
    matrices = matrices.contiguous()
    found = torch.empty_like(matrices)
    count = len(matrices)
    within = np.zeros(count, np.bool_)
    of = (matrices.numpy(), found.numpy(), within)
    numbers = [tensor.numpy().astype(np.uint32) for tensor in drawn]
    how = (first_length, np.array(steps, np.float64), *numbers, float(unit))
    # The buffers of a task take a while to clear, so a task has several matrices.
    step = max(1, min(_AT_ONCE, count // torch.get_num_threads()))
    run_parallel(
        partial(kernel, *of, first, min(first + step, count), *how)
        for first in range(0, count, step)
    )
    return found, [bool(good) for good in within]
