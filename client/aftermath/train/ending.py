"""How a member's end reads: the failures a user meets, as a sentence and what to do."""

from __future__ import annotations

import torch

from aftermath.base.counted import counted
from aftermath.base.errors import AftermathError
from aftermath.train.settings import TrainSettings

_CPU_ALLOCATOR = "can't allocate memory"


class OutOfMemory(AftermathError):
    """The device's memory does not hold the replica and a micro-batch."""


def known(error: Exception, settings: TrainSettings) -> AftermathError | None:
    """The failure as one of ours; None for what no user should ever meet."""
    if isinstance(error, AftermathError):
        return error
    full = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if full or (isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)):
        tier, batch = settings.matformer_tier, settings.micro_batch_size
        return OutOfMemory(
            f"the memory of this machine is too small for tier {tier} with {counted(batch, 'sequence')} at once",
            "lower --micro-batch-size, or hold a smaller model: a higher --matformer-tier",
        )
    return None
