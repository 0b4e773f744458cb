"""Fetch the proven blocks of private states that an audit needs, from their member or its auditor.

A fetch retries until it has all blocks or is cancelled.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from aftermath.audit.claim import (
    ProvenBlocks,
    blocks_to_fetch,
    drawn_residual_blocks,
    start_blocks,
)
from aftermath.base.concurrency import every, first_of
from aftermath.base.rate_limit import Backoff
from aftermath.member.ports import Ports, Workers
from aftermath.optim.engine import outline_of
from aftermath.optim.schema import Schema
from aftermath.optim.state_merkle import BLOCK, StateOutline
from aftermath.p2p.transport import TransportError
from aftermath.replica.state_sharing import FalseBlock, StateBlock, StoredBlocks, ask_block
from aftermath.rules.announcements import NOTHING, Commitment

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 15.0
_BLOCK_SECONDS = 10.0
_AT_ONCE = 4  # requests for blocks to one peer
_LENDER_PAUSE = 3.0  # seconds before a juror asks the auditor, so that the member can answer first


class WantedBlock(NamedTuple):
    """Root of a private state, index of a block in it, and where to store the block."""

    root: bytes
    number: int
    store: MutableMapping[int, StateBlock]


class EvidenceFetch:
    """Fetches the blocks for all audits of one member in one epoch.

    A `seed` is that of the draw among the results of a round.
    """

    def __init__(
        self, ports: Ports, schema: Schema, workers: Workers, directory: Path | None
    ) -> None:
        """For `directory` see `StoredBlocks`."""
        self._ports = ports
        self._schema = schema
        self._prepare = workers.decode
        self._write = workers.write
        self._directory = directory
        self._trouble: dict[bytes, str] = {}
        self._fetching: list[Sequence[WantedBlock]] = []
        """The wanted blocks of the running fetches."""

    def trouble(self, commitment: Commitment) -> str:
        """Return why the state of a result was not fetched yet, or an empty string."""
        return self._trouble.get(commitment.digest, "")

    async def probe(self, commitment: Commitment, seed: int) -> None:
        """Fetch the drawn blocks of the residual after a share. Retry until cancelled."""
        state_outline = await self._outline(commitment)
        sample = drawn_residual_blocks(state_outline, _sample_seed(commitment, seed))
        blocks: dict[int, StateBlock] = {}
        wanted = [WantedBlock(commitment.private.after, index, blocks) for index in sample]
        await self._fetch(commitment, commitment.sender, state_outline, wanted)

    async def evidence(
        self, commitment: Commitment, seed: int, lender: bytes | None
    ) -> ProvenBlocks:
        """Fetch the blocks for a replay and its comparison. Retry until cancelled.

        `lender` is the p2p key of the auditor, which lends the blocks to the jury. Raises OSError
        if the blocks cannot be stored, or would leave too little disk space for a state of this
        member's own.
        """
        state_outline = await self._outline(commitment)
        sample = drawn_residual_blocks(state_outline, _sample_seed(commitment, seed))
        private = commitment.private
        before = StoredBlocks(self._directory)
        after = StoredBlocks(self._directory)
        wanted: list[WantedBlock] = []
        if private.before != NOTHING:
            indices = start_blocks(state_outline, self._schema, sample)
            wanted += [WantedBlock(private.before, index, before) for index in indices]
        indices = blocks_to_fetch(state_outline, self._schema.results, sample)
        wanted += [WantedBlock(private.after, index, after) for index in indices]

        async def from_lender(peer: bytes) -> None:
            # Blocks have proofs, so an auditor cannot forge them. In reverse order, the member and
            # the auditor each send about half.
            await self._ports.clock.sleep(_LENDER_PAUSE)
            await self._fetch(commitment, peer, state_outline, wanted[::-1])

        with self._disk_space(wanted):
            waits = [self._fetch(commitment, commitment.sender, state_outline, wanted)]
            if lender is not None:
                waits.append(from_lender(lender))
            await first_of(*waits)
        return ProvenBlocks(before, after)

    @contextmanager
    def _disk_space(self, wanted: Sequence[WantedBlock]) -> Iterator[None]:
        """Reserve space for a fetch. Raise OSError if it and as much more would not fit."""
        directory = self._directory or tempfile.gettempdir()
        # Blocks that are stored already no longer count as free space.
        missing = sum(one.number not in one.store for fetch in self._fetching for one in fetch)
        if shutil.disk_usage(directory).free < (missing + 2 * len(wanted)) * BLOCK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        self._fetching.append(wanted)
        try:
            yield
        finally:
            self._fetching = [one for one in self._fetching if one is not wanted]

    async def _outline(self, commitment: Commitment) -> StateOutline:
        return await self._prepare(lambda: outline_of(self._schema, commitment.tier))

    async def _fetch(
        self,
        commitment: Commitment,
        peer: bytes,
        state_outline: StateOutline,
        wanted: Sequence[WantedBlock],
    ) -> None:
        """Fetch the wanted blocks that are not stored yet from a peer. Retry until cancelled."""
        transport = self._ports.transport
        queue = iter(wanted)

        async def fetch() -> None:
            for root, index, store in queue:
                pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
                while index not in store:
                    try:
                        block = await ask_block(
                            transport, peer, root, state_outline, index, _BLOCK_SECONDS
                        )
                    except (TransportError, FalseBlock) as error:
                        self._trouble[commitment.digest] = str(error)
                        await self._ports.clock.sleep(pauses.next())
                    else:
                        await self._write(partial(store.__setitem__, index, block))

        await every(fetch() for _ in range(_AT_ONCE))


def _sample_seed(commitment: Commitment, seed: int) -> bytes:
    """Return the seed of the compared blocks of a residual, which is the same for all members."""
    # The seed of the draw is fixed after the result was recorded, so its member did not know it.
    return hashlib.sha256(b"audit" + seed.to_bytes(8, "little") + commitment.digest).digest()
