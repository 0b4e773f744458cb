"""Sum the gradients of all ranks in an order that does not depend on their number.

Floating-point sums depend on the order. So each rank adds the gradients of all micro-batches to its
part, one by one in the order of the share, as a single rank does. An all-to-all replaces FSDP2's
reduce-scatter with as many bytes; ranks meet after every micro-batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aftermath.parallel.collectives import Collectives


class OrderedSum:
    """Sum the gradients of one group of parameters. The first `active` ranks have a micro-batch."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.active = 1
        self._sum: Tensor | None = None

    def forget(self) -> None:
        """Drop the sum."""
        self._sum = None

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized buffer. FSDP2 calls this."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Write the sum so far plus the ranks' parts of `input_tensor` [ranks x part] to
        `output_tensor` [part].
        """
        del op, async_op
        parts = torch.empty_like(input_tensor)
        self._collectives.exchange(parts, input_tensor, group)
        first, *from_others = parts.view(group.size(), -1)[: self.active]
        total = output_tensor.view(-1)
        total.copy_(first) if self._sum is None else torch.add(self._sum, first, out=total)
        for part in from_others:
            total.add_(part)
        self._sum = total.clone()
