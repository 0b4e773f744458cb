"""Pass size: how many sequences a pass has, and whether it uses activation checkpointing.

If a pass does not fit into memory, the pass size is halved and the share begins again. If one
sequence does not fit, layers are recomputed. If that fails too, the member ends. A member on
several devices ends at once. The result holds for the life of the process. This module imports no
torch, because options use its values.
"""

from __future__ import annotations

from typing import Literal

from aftermath.base.errors import AftermathError, Unsuitable
from aftermath.base.text import counted

Checkpointing = Literal["auto", "on", "off"]

AUTO = 0
"""Fit as many sequences as possible: a power of two up to 64. A first pass of one sequence measures
how many.
"""
MOST = 64
_PART = 0.8  # part of the free memory to use
_UNCOUNTED = 1.25  # factor for temporary memory of operations and fragmentation


class OutOfMemory(AftermathError):
    """The replica and a pass do not fit into the device's memory."""

    code = "out-of-memory"


def room(peak: int, free: int) -> int:
    """Return how many sequences fit into `free` bytes in one pass. One took `peak` bytes."""
    return int(_PART * free / max(1, peak * _UNCOUNTED))


class PassSize:
    """The pass size that is known to fit. `size` is AUTO or the sequences per pass."""

    def __init__(self, size: int, checkpointing: Checkpointing) -> None:
        self._size = size
        self._may_recompute = checkpointing == "auto"
        self.recompute = checkpointing == "on"
        """Whether layers are recomputed."""
        self._news: list[str] = []

    @property
    def size(self) -> int:
        """Return the sequences per pass. It is one until the pass size is measured."""
        return self._size or 1

    @property
    def unknown(self) -> bool:
        """Return whether the pass size is still unmeasured."""
        return self._size == AUTO

    def settle(self, peak: int, free: int) -> bool:
        """Choose as many sequences as fit into `free` bytes. One took `peak` bytes plus gradients.

        If not even one fits and recomputation is allowed, enable it and return False.
        """
        fitting = room(peak, free)
        if fitting < 1 and self.recompute_now():
            return False
        self._size = 1 << min(max(fitting, 1), MOST).bit_length() - 1
        self._news.append(
            f"using passes of {self._described()}, which fit into {free / 1e9:.1f} GB"
        )
        return True

    def shrink(self) -> bool:
        """Use less memory from now on. Return False if that is impossible."""
        if self.size > 1:
            self._size = self.size // 2
        elif not self.recompute_now():
            return False
        self._news.append(f"out of memory: using passes of {self._described()} from now on")
        return True

    def recompute_now(self) -> bool:
        """Recompute layers from now on. Return False if they already are, or must not be."""
        if self.recompute or not self._may_recompute:
            return False
        self.recompute = True
        return True

    def forbid_recompute(self) -> None:
        """Disable recomputation for a network without it. Raises Unsuitable if it was requested."""
        if self.recompute:
            raise Unsuitable(
                "--activation-checkpointing on does not work with HfAuto models",
                "Use auto",
            )
        self._may_recompute = False

    def news(self) -> tuple[str, ...]:
        """Return what has changed since the last call."""
        news, self._news = tuple(self._news), []
        return news

    def _described(self) -> str:
        return counted(self.size, "sequence") + (
            " with activation checkpointing" if self.recompute else ""
        )
