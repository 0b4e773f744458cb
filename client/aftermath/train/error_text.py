"""Convert an exception that ends a member to an error with a fix."""

from __future__ import annotations

from aftermath.base.errors import AftermathError
from aftermath.replica.pass_size import OutOfMemory
from aftermath.train.settings import TrainSettings


def known(error: Exception, settings: TrainSettings) -> AftermathError | None:
    """Return the error for the user, or None for an unexpected exception."""
    if isinstance(error, AftermathError):
        return error
    # This imports torch, so do it only if needed.
    from aftermath.replica.memory import is_out_of_memory

    if is_out_of_memory(error):
        return OutOfMemory(
            f"the memory of this machine is too small for the model of tier {settings.matformer_tier}",
            "Hold a smaller one: a higher --matformer-tier",
        )
    return None
