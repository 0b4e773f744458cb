"""Merkle roots of the local optimizer state for commitments, and a server for its blocks.

A separate thread hashes the state after each share. The states around a share that may be audited
are copied for peers. Both happen before the next share, which changes the state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from aftermath.base.concurrency import Worker
from aftermath.base.merkle import Tree
from aftermath.member.ports import Desync, Ports
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.replica import Replica
from aftermath.replica.state_sharing import StateBlock, StateShare, copy_state
from aftermath.rules.announcements import NOTHING, PrivateRoots
from aftermath.rules.audits import judging_window
from aftermath.rules.run import Config


def served_states(config: Config) -> int:
    """Return the number of states that audits of a run need."""
    # From the state before an audited result to the one of the last round of votes.
    return judging_window(config) + 2


class StateRoot(NamedTuple):
    """The root after a result, with the result's epoch and height."""

    root: bytes
    epoch: int
    height: int


class OwnState:
    """Roots and blocks of one member's optimizer state, across replicas."""

    def __init__(self, ports: Ports, worker: Worker, directory: Path | None = None) -> None:
        """Keep states that are too large for memory in `directory`."""
        self._directory = directory
        self._feed = ports.feed
        self._share = StateShare(ports.transport)
        self._worker = worker
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

    def restored(self, root: StateRoot) -> None:
        """Continue from a saved state, whose result was revealed before the restart."""
        self.begin(root)
        self.reveal(root.epoch, root.height)

    async def trained(self, replica: Replica, epoch: int, height: int) -> PrivateRoots:
        """Return the roots of the share that was just trained. Slow."""
        tree = self._tree = await self._worker(replica.optimizer.tree)
        before, self.last_root = self.last_root, StateRoot(tree.root, epoch, height)
        since = None if before is None else (before.epoch, before.height)
        return PrivateRoots(NOTHING if before is None else before.root, tree.root, since)

    async def offer(self, replica: Replica) -> None:
        """Copy the state with the last root, unless it was. Peers may request it after the reveal.

        Raises Desync if the copy does not fit into memory or on the disk.
        """
        last_root = self.last_root
        if last_root is None or self._share.has(last_root.root):
            return
        states = served_states(self._feed.run.config)
        try:
            tree = await self._hashed(replica)
            copy = await self._worker(
                lambda: copy_state(
                    replica.optimizer, tree, states=states, directory=self._directory
                )
            )
        except Exception as error:
            if not (is_out_of_memory(error) or isinstance(error, OSError | SafetensorError)):
                raise
            raise Desync(f"cannot keep the optimizer state for audits: {error}") from None
        self._share.offer(copy, hidden=True, states=states)
        self._unrevealed[last_root.epoch, last_root.height] = last_root.root
        self._serve_revealed()

    async def _hashed(self, replica: Replica) -> Tree:
        """Return the tree of the state with the last root."""
        if self._tree is None:  # the state was restored
            self._tree = await self._worker(replica.optimizer.tree)
        return self._tree

    def lend(self, root: bytes, blocks: Mapping[int, StateBlock]) -> None:
        """Serve blocks of a state that another member committed to."""
        if blocks:
            self._share.lend(root, blocks)

    def keep_lent(self, roots: Collection[bytes]) -> None:
        """Stop lending blocks of all other states."""
        self._share.keep_lent(roots)

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
