"""Run the compiled CPU kernels of `optim.integer_polar`, which passes the constants."""

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
    """The 24-bit numbers from which each step's offsets are made, int64 [steps, n]."""

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
    """Return the polar factors of fp32 matrices [n, short, long] on the CPU, and which are valid.

    Factors of matrices that exceed the bounds are not valid. The other arguments are those of
    `kernels.polar`.
    """
    from aftermath.kernels import polar as kernels

    kernel: Any = kernels.polar
    matrices = matrices.contiguous()
    factors = torch.empty_like(matrices)
    count = len(matrices)
    within = np.zeros(count, np.bool_)
    arrays = (matrices.numpy(), factors.numpy(), within)
    numbers = [tensor.numpy().astype(np.uint32) for tensor in drawn]
    constants = (first_length, np.array(steps, np.float64), *numbers, float(unit))
    # The buffers of a task take a while to clear, so a task has several matrices.
    step = max(1, min(_AT_ONCE, count // torch.get_num_threads()))
    run_parallel(
        partial(kernel, *arrays, first, min(first + step, count), *constants)
        for first in range(0, count, step)
    )
    return factors, [bool(good) for good in within]
