"""Fetch the proven blocks of private states that an audit needs, from their member or its auditor.

A fetch retries until it has all blocks or is cancelled.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection

from aftermath.audit.claim import (
    ProvenBlocks,
    blocks_to_fetch,
    drawn_residual_blocks,
    start_blocks,
)
from aftermath.base.concurrency import Worker, first_of
from aftermath.base.rate_limit import Backoff
from aftermath.member.ports import Ports
from aftermath.optim.engine import outline_of
from aftermath.optim.schema import Schema
from aftermath.optim.state_merkle import StateOutline
from aftermath.p2p.transport import TransportError
from aftermath.replica.state_sharing import FalseBlock, StateBlock, ask_block
from aftermath.rules.announcements import NOTHING, Commitment

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 15.0
_BLOCK_SECONDS = 10.0
_AT_ONCE = 4  # requests for blocks
_LENDER_PAUSE = 3.0  # seconds before a juror asks the auditor, so that the member can answer first


class EvidenceFetch:
    """Fetches the blocks for all audits of one member in one epoch.

    A `seed` is that of the draw among the results of a round.
    """

    def __init__(self, ports: Ports, schema: Schema, prepare: Worker) -> None:
        self._ports = ports
        self._schema = schema
        self._prepare = prepare
        self._trouble: dict[bytes, str] = {}

    def trouble(self, commitment: Commitment) -> str:
        """Return why the state of a result was not fetched yet, or an empty string."""
        return self._trouble.get(commitment.digest, "")

    async def probe(self, commitment: Commitment, seed: int) -> None:
        """Fetch the drawn blocks of the residual after a share. Retry until cancelled."""
        state_outline = await self._outline(commitment)
        sample = drawn_residual_blocks(state_outline, _sample_seed(commitment, seed))
        await self._blocks(
            commitment.digest, commitment.sender, commitment.private.after, state_outline, sample
        )

    async def first_block(self, commitment: Commitment, seed: int, lender: bytes | None) -> None:
        """Fetch one block that `evidence` needs. Retry until cancelled."""
        state_outline = await self._outline(commitment)
        sample = drawn_residual_blocks(state_outline, _sample_seed(commitment, seed))
        root = commitment.private.after

        async def fetch(peer: bytes, pause: float) -> None:
            await self._ports.clock.sleep(pause)
            await self._blocks(commitment.digest, peer, root, state_outline, sample[:1])

        waits = [fetch(commitment.sender, 0.0)]
        if lender is not None:
            waits.append(fetch(lender, _LENDER_PAUSE))
        await first_of(*waits)

    async def evidence(
        self, commitment: Commitment, seed: int, lender: bytes | None
    ) -> ProvenBlocks:
        """Fetch the blocks for a replay and its comparison. Retry until cancelled.

        `lender` is the p2p key of the auditor, which lends the blocks to the jury.
        """
        state_outline = await self._outline(commitment)
        sample = drawn_residual_blocks(state_outline, _sample_seed(commitment, seed))
        waits = [self._fetch(commitment, commitment.sender, state_outline, sample)]
        if lender is not None:
            waits.append(self._from_lender(commitment, state_outline, sample, lender))
        return await first_of(*waits)

    async def _outline(self, commitment: Commitment) -> StateOutline:
        return await self._prepare(lambda: outline_of(self._schema, commitment.tier))

    async def _from_lender(
        self,
        commitment: Commitment,
        state_outline: StateOutline,
        sample: list[int],
        lender: bytes,
    ) -> ProvenBlocks:
        """Fetch the blocks from the auditor, unless the audited member soon serves them."""
        # Blocks have proofs, so an auditor cannot forge them.
        await self._ports.clock.sleep(_LENDER_PAUSE)
        root = commitment.private.after
        digest = commitment.digest
        await self._blocks(digest, lender, root, state_outline, sample[:1])  # until it lends
        return await self._fetch(commitment, lender, state_outline, sample)

    async def _fetch(
        self,
        commitment: Commitment,
        peer: bytes,
        state_outline: StateOutline,
        sample: Collection[int],
    ) -> ProvenBlocks:
        """Fetch the blocks from a peer. `sample` has the indices of the residual blocks to
        compare.
        """
        private = commitment.private
        digest = commitment.digest
        before: Collection[int] = ()
        if private.before != NOTHING:
            before = start_blocks(state_outline, self._schema, sample)
        after = blocks_to_fetch(state_outline, self._schema.results, sample)
        return ProvenBlocks(
            await self._blocks(digest, peer, private.before, state_outline, before),
            await self._blocks(digest, peer, private.after, state_outline, after),
        )

    async def _blocks(
        self,
        digest: bytes,
        peer: bytes,
        root: bytes,
        state_outline: StateOutline,
        wanted: Collection[int],
    ) -> dict[int, StateBlock]:
        """Fetch blocks of a private state. Retry until cancelled."""
        found: dict[int, StateBlock] = {}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def fetch(index: int) -> None:
            async with turns:
                found[index] = await ask_block(
                    self._ports.transport, peer, root, state_outline, index, _BLOCK_SECONDS
                )

        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while missing := [index for index in wanted if index not in found]:
            outcomes = await asyncio.gather(*map(fetch, missing), return_exceptions=True)
            for error in filter(None, outcomes):
                if not isinstance(error, TransportError | FalseBlock):
                    raise error
                self._trouble[digest] = str(error)
            if len(found) < len(wanted):
                await self._ports.clock.sleep(pauses.next())
        return found


def _sample_seed(commitment: Commitment, seed: int) -> bytes:
    """Return the seed of the compared blocks of a residual, which is the same for all members."""
    # The seed of the draw is fixed after the result was recorded, so its member did not know it.
    return hashlib.sha256(b"audit" + seed.to_bytes(8, "little") + commitment.digest).digest()
