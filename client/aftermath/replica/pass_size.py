"""How a share is cut into passes: so many sequences at once, and whether layers keep what their gradients need.

Decided
- Where memory does not hold a pass, passes become smaller by half and the share begins again; at one sequence, layers
  keep their inputs alone and are computed twice (activation checkpointing). Only where that is not enough either does
  the member end. What was found stays so for the life of the process.
- `auto` begins with as many sequences, a power of two up to 64, as fit beside the gradients into four fifths of the
  memory that is free; one sequence is passed first, to see what it takes.

No torch here: settings take their words from it.
"""

from __future__ import annotations

from typing import Literal

from aftermath.base.counted import counted
from aftermath.base.errors import AftermathError, Unsuitable

Checkpointing = Literal["auto", "on", "off"]

AUTO = 0
"""So many sequences as fit."""
MOST = 64
_PART = 0.8  # of what is free
_UNCOUNTED = 1.25  # what an operation needs for itself, and what an allocator cannot use, beside the tensors


class OutOfMemory(AftermathError):
    """The device's memory does not hold the replica and a pass of one sequence."""

    code = "out-of-memory"


class PassSize:
    """What fits, as far as it is known. `size` is AUTO or the sequences of a pass."""

    def __init__(self, size: int, checkpointing: Checkpointing) -> None:
        self._size, self._may_recompute = size, checkpointing == "auto"
        self.recompute = checkpointing == "on"
        """Whether layers are computed twice."""
        self._news: list[str] = []

    @property
    def size(self) -> int:
        """Sequences at once; one until it is known how many fit."""
        return self._size or 1

    @property
    def unknown(self) -> bool:
        """Whether it is still to be found how many fit."""
        return self._size == AUTO

    def settle(self, peak: int, free: int) -> bool:
        """Take as many sequences as fit into `free` bytes, if one took `peak` beside the gradients.

        False, with layers that are computed twice from now on, where not even one fits and that is allowed.
        """
        room = int(_PART * free / max(1, peak * _UNCOUNTED))
        if room < 1 and self.recompute_now():
            return False
        self._size = 1 << min(max(room, 1), MOST).bit_length() - 1
        self._news.append(f"passes of {self._described()}: what fits into {free / 1e9:.1f} GB")
        return True

    def shrink(self) -> bool:
        """Take less memory from now on; False if there is no less."""
        if self.size > 1:
            self._size = self.size // 2
        elif not self.recompute_now():
            return False
        self._news.append(f"out of memory: passes of {self._described()} from now on")
        return True

    def recompute_now(self) -> bool:
        """Have layers computed twice from now on; False if they are, or must not be."""
        if self.recompute or not self._may_recompute:
            return False
        self.recompute = True
        return True

    def forbid_recompute(self) -> None:
        """Of a network that cannot. Raises Unsuitable where that was asked for."""
        if self.recompute:
            raise Unsuitable(
                "--activation-checkpointing on: a model that only transformers knows computes its layers once",
                "Use auto",
            )
        self._may_recompute = False

    def news(self) -> tuple[str, ...]:
        """What has changed since this was asked last."""
        news, self._news = tuple(self._news), []
        return news

    def _described(self) -> str:
        return counted(self.size, "sequence") + (", with layers computed twice" if self.recompute else "")
