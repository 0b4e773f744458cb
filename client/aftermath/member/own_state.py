"""What this member's own optimizer knows: the roots of it in its commitments, and its blocks for whoever asks.

Choices:
- it is hashed after a share was trained, on a thread of its own, while the result is checked and published; and copied
  for others once the result is announced. Both are done before the next share, which changes it;
- nobody is given the state after a round before the key of its result is told: what was sent can be read from it. It
  is copied all the same, since the next share changes it;
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
        self._sealed: dict[tuple[int, int], bytes] = {}
        """By epoch and height: the roots of states that nobody is given yet."""
        self._opened = (-1, -1)
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
        """Let others ask for the state whose roots were made last, once it is opened."""
        if (tree := self._tree) is None or (told := self.told) is None:
            return
        try:
            kept = await self._worker(lambda: kept_of(replica.optimizer, tree))
            self._share.offer(kept, hidden=True)
            self._sealed[told.epoch, told.height] = tree.root
            self._show()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if not self._warned:
                message = (
                    "there is no memory for a copy of what the optimizer knows: nobody can check this member's work"
                )
                self._events.emit(kinds.Warning(message=message))
            self._warned = True

    def opened(self, epoch: int, height: int) -> None:
        """The key of this member's result of a round is told: that state may be seen, and those before it."""
        self._opened = epoch, height
        self._show()

    def _show(self) -> None:
        for place in [place for place in self._sealed if place <= self._opened]:
            self._share.show(self._sealed.pop(place))

    def withdraw(self) -> None:
        """Answer no more for any state, and free the memory of all."""
        self._tree = None
        self._sealed.clear()
        self._opened = (-1, -1)
        self._share.withdraw()
