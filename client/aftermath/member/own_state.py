"""What this member's own optimizer knows: the roots of it in its commitments, and its blocks for whoever asks.

Choices:
- it is hashed after a share was trained, on a thread of its own, while the result is checked and published; and copied
  for others once the result is announced. Both are done before the next share, which changes it;
- where there is no memory for a copy, a warning says so, and others cannot ask for that state;
- the root before is the one that was told last. A share that is given up leaves the state as it was, so what was told
  stays true.
"""

from __future__ import annotations

from typing import NamedTuple

from aftermath.base.merkle import Tree
from aftermath.base.worker import Worker
from aftermath.member.ports import Ports
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.replica import Replica
from aftermath.replica.stateshare import StateShare, kept_of
from aftermath.rules.commitment import NOTHING, PrivateRoots
from aftermath.watch import kinds


class StateRoot(NamedTuple):
    """The root after a result, and the epoch and height of that."""

    root: bytes
    epoch: int
    height: int


class OwnState:
    """Of one member; its replica may change."""

    def __init__(self, ports: Ports, worker: Worker) -> None:
        self._share, self._events, self._worker = StateShare(ports.transport), ports.events, worker
        self._warned = False
        self._tree: Tree | None = None
        self.told: StateRoot | None = None
        """What was told last of the state that the replica has; None while that is nothing."""

    def begin(self, told: StateRoot | None) -> None:
        """Go on with another state: none, or the one that was told so."""
        self.told = told
        self.withdraw()

    async def trained(self, replica: Replica, epoch: int, height: int) -> PrivateRoots:
        """The roots of a share that was trained just now; slow."""
        tree = self._tree = await self._worker(replica.optimizer.tree)
        before, self.told = self.told, StateRoot(tree.root, epoch, height)
        since = None if before is None else (before.epoch, before.height)
        return PrivateRoots(NOTHING if before is None else before.root, tree.root, since)

    async def offer(self, replica: Replica) -> None:
        """Let others ask for the state whose roots were made last."""
        if (tree := self._tree) is None:
            return
        try:
            self._share.offer(await self._worker(lambda: kept_of(replica.optimizer, tree)))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if not self._warned:
                message = (
                    "there is no memory for a copy of what the optimizer knows: nobody can check this member's work"
                )
                self._events.emit(kinds.Warning(message=message))
            self._warned = True

    def withdraw(self) -> None:
        """Answer no more for any state, and free the memory of all."""
        self._tree = None
        self._share.withdraw()
