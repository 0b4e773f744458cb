"""Compile the kernels when a member starts, and compare them with PyTorch.

Missing kernels are reported. Kernels with other results than PyTorch are a warning, because
something is wrong with the machine.
"""

from __future__ import annotations

from aftermath.base.concurrency import Worker
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.kernels.runtime import needs_compilation, unavailable_reason
from aftermath.optim.proof import unfit


async def ready_kernels(events: Events, compute: Worker) -> None:
    """Compile and check the kernels. Emit an event, with the reason if torch replaces them."""
    if await compute(needs_compilation):
        events.emit(event_types.Compiling())
    why = await compute(unfit)
    events.emit(event_types.Kernels(missing=why))
    if why is not None and await compute(unavailable_reason) is None:
        events.emit(event_types.Warning(message=f"{why}: torch does it instead, and slower"))
