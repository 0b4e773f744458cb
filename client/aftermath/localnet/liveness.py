"""Whether the network does what its clients rely on: slots advance, and what is sent can be kept.

Decided: the answers are a validator's (agave 3.1): "ok", or error -32005 with the slots it is behind; on /health one
word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aftermath.localnet.bank import Bank
from aftermath.localnet.commit import Committer
from aftermath.localnet.errors import NODE_UNHEALTHY, RpcError

OK, BEHIND, UNKNOWN = "ok", "behind", "unknown"


class Health:
    """Asked anew for every answer. `watch` is told the task that moves the slots."""

    def __init__(self, bank: Bank, committer: Committer) -> None:
        self._bank = bank
        self._committer = committer
        self._clockwork: asyncio.Task[None] | None = None

    def watch(self, clockwork: asyncio.Task[None]) -> None:
        """From now on slots must move by themselves."""
        self._clockwork = clockwork

    def methods(self) -> dict[str, Callable[[Any], Any]]:
        return {"getHealth": self.answer}

    def answer(self, params: Any) -> str:
        """ "ok", or the error that says what is wrong."""
        if behind := self._behind():
            raise RpcError(NODE_UNHEALTHY, f"Node is behind by {behind} slots", {"numSlotsBehind": behind})
        if (trouble := self._trouble()) is not None:
            raise RpcError(NODE_UNHEALTHY, f"Node is unhealthy: {trouble}", {"numSlotsBehind": None})
        return OK

    def word(self) -> str:
        """The answer of /health."""
        if self._behind():
            return BEHIND
        return OK if self._trouble() is None else UNKNOWN

    def _behind(self) -> int:
        return self._bank.slots.behind(self._bank.time.now())

    def _trouble(self) -> str | None:
        if self._clockwork is not None and self._clockwork.done():
            return "its slots have stopped"
        trouble = self._committer.trouble
        return None if trouble is None else f"its ledger cannot be written ({trouble})"
