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
class _Motion:
    """One collective: an all-gather, or an all-to-all."""

    gathers: bool
    given: int
    found: int
    dtype: torch.dtype
    device: torch.device
    group: Any


class Motions:
    """Those of one network's passes."""

    def __init__(self) -> None:
        self._known: list[_Motion] | None = None
        self._now: list[_Motion] = []

    def begin(self) -> None:
        """A pass begins."""
        self._now = []

    def end(self) -> None:
        """It came to its end."""
        self._known = self._now

    def gather(self, found: Tensor, given: Tensor, group: Any, async_op: bool = False) -> Any:
        """All ranks' `given`, one after the other."""
        work = dist.all_gather_into_tensor(found, given, group=group, async_op=async_op)
        self._took_part(True, found, given, group)
        return work

    def exchange(self, found: Tensor, given: Tensor, group: Any) -> None:
        """This rank's part of every rank's `given`."""
        dist.all_to_all_single(found, given, group=group)
        self._took_part(False, found, given, group)

    def _took_part(self, gathers: bool, found: Tensor, given: Tensor, group: Any) -> None:
        self._now.append(
            _Motion(gathers, given.numel(), found.numel(), found.dtype, found.device, group)
        )

    @property
    def may_finish(self) -> bool:
        """Whether it is known what is left of the pass."""
        return self._known is not None and self._now == self._known[: len(self._now)]

    def finish(self) -> None:
        """Take part in what is left of the pass."""
        assert self._known is not None
        for motion in self._known[len(self._now) :]:
            given, found = (
                torch.zeros(count, dtype=motion.dtype, device=motion.device)
                for count in (motion.given, motion.found)
            )
            (self.gather if motion.gathers else self.exchange)(found, given, motion.group)


class Gathering:
    """An all-gather as FSDP2 asks for it."""

    def __init__(self, motions: Motions) -> None:
        self._motions = motions

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Put all ranks' `input_tensor` into `output_tensor`."""
        return self._motions.gather(output_tensor, input_tensor, group, async_op)
