"""The sentence and the fix for each failure that ends a member."""

from __future__ import annotations

from aftermath.base.errors import AftermathError
from aftermath.replica.pass_size import OutOfMemory
from aftermath.train.settings import TrainSettings


def known(error: Exception, settings: TrainSettings) -> AftermathError | None:
    """The failure as one of ours; None for what no user should ever meet."""
    if isinstance(error, AftermathError):
        return error
    # with torch, which other failures do not wait for
    from aftermath.replica.memory import is_out_of_memory

    if is_out_of_memory(error):
        return OutOfMemory(
            f"the memory of this machine is too small for the model of tier {settings.matformer_tier}",
            "Hold a smaller one: a higher --matformer-tier",
        )
    return None
