"""Merkle roots of the local optimizer state for commitments, and a server for its blocks.

A separate thread hashes the state after each share. Once the result is announced, the state is
copied for peers. Both happen before the next share, which changes the state.
"""

from __future__ import annotations

from typing import NamedTuple

from aftermath.base.concurrency import Worker
from aftermath.base.merkle import Tree
from aftermath.events import event_types
from aftermath.member.ports import Ports
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.replica import Replica
from aftermath.replica.state_sharing import StateShare, copy_state
from aftermath.rules.announcements import NOTHING, PrivateRoots


class StateRoot(NamedTuple):
    """The root after a result, with the result's epoch and height."""

    root: bytes
    epoch: int
    height: int


class OwnState:
    """Roots and blocks of one member's optimizer state, across replicas."""

    def __init__(self, ports: Ports, worker: Worker) -> None:
        self._share = StateShare(ports.transport)
        self._events = ports.events
        self._worker = worker
        self._warned = False
        self._tree: Tree | None = None
        self._unrevealed: dict[tuple[int, int], bytes] = {}
        """Roots of states that peers may not request yet, by epoch and height."""
        self._revealed = (-1, -1)
        self.last_root: StateRoot | None = None
        """The last published root of the replica's state. None if there is no state."""

    # An abandoned share leaves the state unchanged, so the last published root stays valid.

    def begin(self, root: StateRoot | None) -> None:
        """Continue from the state with this root, or without a state."""
        self.last_root = root
        self.withdraw()

    async def trained(self, replica: Replica, epoch: int, height: int) -> PrivateRoots:
        """Return the roots of the share that was just trained. Slow."""
        tree = self._tree = await self._worker(replica.optimizer.tree)
        before, self.last_root = self.last_root, StateRoot(tree.root, epoch, height)
        since = None if before is None else (before.epoch, before.height)
        return PrivateRoots(NOTHING if before is None else before.root, tree.root, since)

    async def offer(self, replica: Replica) -> None:
        """Copy the last hashed state. Peers may request it after the reveal.

        If there is no memory for a copy, emit a warning. Peers then cannot request that state.
        """
        if (tree := self._tree) is None or (last_root := self.last_root) is None:
            return
        try:
            copy = await self._worker(lambda: copy_state(replica.optimizer, tree))
            self._share.offer(copy, hidden=True)
            self._unrevealed[last_root.epoch, last_root.height] = tree.root
            self._serve_revealed()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if not self._warned:
                message = (
                    "there is no memory for a copy of the optimizer state: "
                    "other members cannot check this member's work"
                )
                self._events.emit(event_types.Warning(message=message))
            self._warned = True

    def reveal(self, epoch: int, height: int) -> None:
        """Serve the state of a revealed round. Before the reveal it would leak the result."""
        self._revealed = epoch, height
        self._serve_revealed()

    def _serve_revealed(self) -> None:
        for epoch_round in [
            epoch_round for epoch_round in self._unrevealed if epoch_round <= self._revealed
        ]:
            self._share.show(self._unrevealed.pop(epoch_round))

    def withdraw(self) -> None:
        """Stop serving states, and free all copies."""
        self._tree = None
        self._unrevealed.clear()
        self._revealed = (-1, -1)
        self._share.withdraw()
