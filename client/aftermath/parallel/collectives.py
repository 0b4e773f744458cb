"""Keep a rank that ran out of memory in step with the others.

The others wait for it inside a layer. It drops its pass, which frees the memory, and takes part in
the remaining collectives with empty buffers until the share ends (`parallel.leader`). It knows
their order from an earlier complete pass.
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
    given: int
    found: int
    dtype: torch.dtype
    device: torch.device
    group: Any


class Collectives:
    """Record the collectives of a network's passes, and finish a pass without computing it."""

    def __init__(self) -> None:
        self._known: list[_Collective] | None = None
        self._now: list[_Collective] = []

    def begin(self) -> None:
        """Start recording a pass."""
        self._now = []

    def end(self) -> None:
        """Keep the record of a complete pass."""
        self._known = self._now

    def gather(self, found: Tensor, given: Tensor, group: Any, async_op: bool = False) -> Any:
        """Write all ranks' `given` to `found`, in the order of ranks."""
        work = dist.all_gather_into_tensor(found, given, group=group, async_op=async_op)
        self._record(True, found, given, group)
        return work

    def exchange(self, found: Tensor, given: Tensor, group: Any) -> None:
        """Write this rank's part of every rank's `given` to `found`."""
        dist.all_to_all_single(found, given, group=group)
        self._record(False, found, given, group)

    def _record(self, gathers: bool, found: Tensor, given: Tensor, group: Any) -> None:
        self._now.append(
            _Collective(gathers, given.numel(), found.numel(), found.dtype, found.device, group)
        )

    @property
    def can_finish(self) -> bool:
        """Whether an earlier complete pass shows what is left of this one."""
        return self._known is not None and self._now == self._known[: len(self._now)]

    def finish(self) -> None:
        """Take part in the rest of the pass with buffers of zeros."""
        assert self._known is not None
        for collective in self._known[len(self._now) :]:
            given, found = (
                torch.zeros(count, dtype=collective.dtype, device=collective.device)
                for count in (collective.given, collective.found)
            )
            (self.gather if collective.gathers else self.exchange)(found, given, collective.group)


class AllGather:
    """Implement the all-gather that FSDP2 calls."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized buffer."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Write all ranks' `input_tensor` to `output_tensor`."""
        return self._collectives.gather(output_tensor, input_tensor, group, async_op)
