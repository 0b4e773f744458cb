"""The collectives of FSDP2: recorded, so that a failed pass can finish, and summed in order.

If a rank runs out of memory, the others wait for it inside a layer. So it drops its pass, which
frees the memory, and takes part in the remaining collectives with zero buffers until the share ends
(`parallel.multi_device_replica`). It knows their order from an earlier complete pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class _Collective:
    """Describe one collective: an all-gather or an all-to-all."""

    gathers: bool
    input_size: int
    output_size: int
    dtype: torch.dtype
    device: torch.device
    group: Any


class Collectives:
    """Record the collectives of a network's passes, and finish a pass without computing it.

    FSDP2 calls it as its all-gather.
    """

    allocate = staticmethod(torch.empty)  # FSDP2 allocates its buffers with this

    def __init__(self) -> None:
        self._recorded: list[_Collective] | None = None
        self._now: list[_Collective] = []

    def begin(self) -> None:
        """Start recording a pass."""
        self._now = []

    def end(self) -> None:
        """Keep the record of a complete pass."""
        self._recorded = self._now

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Write all ranks' `input_tensor` to `output_tensor`, in the order of ranks."""
        work = dist.all_gather_into_tensor(
            output_tensor, input_tensor, group=group, async_op=async_op
        )
        self._record(True, output_tensor, input_tensor, group)
        return work

    def exchange(self, output: Tensor, tensor: Tensor, group: Any) -> None:
        """Write this rank's part of every rank's `tensor` to `output`."""
        dist.all_to_all_single(output, tensor, group=group)
        self._record(False, output, tensor, group)

    def _record(self, gathers: bool, output: Tensor, tensor: Tensor, group: Any) -> None:
        self._now.append(
            _Collective(gathers, tensor.numel(), output.numel(), output.dtype, output.device, group)
        )

    @property
    def can_finish(self) -> bool:
        """Return whether an earlier complete pass shows what is left of this one."""
        return self._recorded is not None and self._now == self._recorded[: len(self._now)]

    def finish(self) -> None:
        """Take part in the rest of the pass with buffers of zeros."""
        assert self._recorded is not None
        for collective in self._recorded[len(self._now) :]:
            tensor, output = (
                torch.zeros(count, dtype=collective.dtype, device=collective.device)
                for count in (collective.input_size, collective.output_size)
            )
            (self if collective.gathers else self.exchange)(output, tensor, collective.group)


class OrderedSum:
    """Sum the gradients of one group of parameters. The first `active` ranks have a micro-batch."""

    # Floating-point sums depend on the order. So each rank adds the gradients of all micro-batches
    # to its part one by one, in the order of the share, as a single rank does. An all-to-all
    # replaces FSDP2's reduce-scatter and sends as many bytes. Ranks synchronise after every
    # micro-batch.

    allocate = staticmethod(torch.empty)  # FSDP2 allocates its buffers with this

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.active = 1
        self._sum: Tensor | None = None

    def forget(self) -> None:
        """Drop the sum."""
        self._sum = None

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
