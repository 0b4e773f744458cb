"""Fetch one piece of a blob from one peer, verify it, and count failures against the peer."""

from __future__ import annotations

import asyncio
import logging

import iroh

from aftermath.p2p.connection_table import Links
from aftermath.p2p.limits import LogLimits
from aftermath.p2p.line_faults import MemberLine
from aftermath.p2p.peer_connection import Link
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.piece_choice import PieceFetch, PiecePull
from aftermath.p2p.transport import PeerUnreachable, RequestFailed, TransportError, short
from aftermath.p2p.wire import (
    Code,
    PieceRequest,
    ProtocolViolation,
    Reply,
    ReplyStatus,
    cause,
    frame_of,
    read_message,
)

LEAST_PROGRESS = 32768
"""Bytes that a peer must send within its patience."""
TRICKLE = 65536
TRICKLE_S = 0.02
"""Seconds to wait after a read below TRICKLE bytes, so that a slow sender does not cost many reads.
"""

log = logging.getLogger(__name__)


class _FalsePiece(Exception):
    """A peer sent a piece that does not match its hash, or stated a wrong blob size."""


class PiecePuller:
    """Fetches single pieces."""

    def __init__(self, links: Links, pace: PeerMeasurements, line: MemberLine) -> None:
        self._links = links
        self._pace = pace
        self._line = line
        self._log_limits = LogLimits(log)

    async def pull(self, swarm: PieceFetch, pull: PiecePull) -> None:
        """Fetch one piece. Count a failure against the peer, or close the lane that failed."""
        peer = pull.peer
        lanes = self._links.lanes(peer)
        lane = min(lanes, key=lambda one: one.transfers, default=None)
        if lane is not None:
            lane.transfers += 1
        try:
            link = lane or await self._links.get(peer, self._pace.patience(peer))
            if not await self._pull(link, swarm, pull):
                swarm.strike(peer, pull.index)
        except _FalsePiece as lie:
            swarm.drop(peer)
            swarm.failed = swarm.failed or peer == swarm.author
            condemn(self._pace, peer, swarm.digest, str(lie))
        # Any error in a peer's data is the peer's fault and must not end this member.
        except Exception as error:
            if lane is None:
                self._blame(swarm, pull, error)
            else:
                self._give_up_lane(lane, pull, error)
        finally:
            if lane is not None:
                lane.transfers -= 1

    def _blame(self, swarm: PieceFetch, pull: PiecePull, error: Exception) -> None:
        """Count a failure on a peer's link. Raise the error if the transport is closed."""
        peer = pull.peer
        if isinstance(error, PeerUnreachable | RequestFailed | iroh.IrohError | TimeoutError):
            log.debug("piece %d from peer %s: %s", pull.index, short(peer), cause(error))
            self._pace.failed(peer)
            self._pace.events["retries"] += 1
            swarm.strike(peer, pull.index)
        elif isinstance(error, TransportError):
            raise error
        else:
            if not isinstance(error, ProtocolViolation):
                self._log_limits.failure("fetching a piece from", peer, error)
            self._pace.failed(peer)
            swarm.drop(peer)

    def _give_up_lane(self, lane: Link, pull: PiecePull, error: Exception) -> None:
        """Close a lane that failed. The next pieces come over other lanes or the link."""
        # A failed lane does not count against the peer (as in `blob_fetch`).
        log.debug("piece %d over a lane to peer %s: %s", pull.index, short(pull.peer), cause(error))
        self._pace.events["retries"] += 1
        lane.close(Code.STALLED, "a transfer failed")

    async def _pull(self, link: Link, swarm: PieceFetch, pull: PiecePull) -> bool:
        """Ask for one piece, read and verify it. Return False if the peer does not have it."""
        patience = self._pace.patience(pull.peer)
        pieces = swarm.pieces
        length = pieces.length(pull.index)
        await self._line.send(0)
        async with asyncio.timeout(patience):
            stream = await link.connection.open_bi()
            await stream.send().write_all(
                frame_of(PieceRequest(swarm.digest, pieces.listing, pull.index))
            )
            await stream.send().finish()
            reply = await read_message(stream.recv(), Reply)
        if reply.status != ReplyStatus.OK:
            return False
        if reply.size != pieces.size:
            raise _FalsePiece(f"states {reply.size} bytes, not {pieces.size}")
        data = bytearray()
        try:
            while len(data) < length and not self._is_over(swarm, pull.index):
                before = len(data)
                async with asyncio.timeout(patience):
                    await self._read(link, stream.recv(), swarm, pull, data, length)
                await self._line.download(len(data) - before)
        finally:
            link.give_up(length - len(data))
        if len(data) < length:
            await stream.recv().stop(0)
            return True
        self._pace.delivered(pull.peer, length, self._pace.clock() - pull.started)
        if not pieces.put(pull.index, data):
            raise _FalsePiece(f"sent piece {pull.index} with the wrong BLAKE3 hash")
        swarm.delivered[pull.peer] += 1
        return True

    def _is_over(self, swarm: PieceFetch, index: int) -> bool:
        return swarm.ended or swarm.pieces.holds(index)

    async def _read(
        self,
        link: Link,
        stream: iroh.RecvStream,
        swarm: PieceFetch,
        pull: PiecePull,
        data: bytearray,
        length: int,
    ) -> None:
        """Read at least LEAST_PROGRESS bytes, or the rest."""
        goal = min(length, len(data) + LEAST_PROGRESS)
        while len(data) < goal:
            chunk = await stream.read(self._line.download_piece(length - len(data)))
            if not chunk:
                raise RequestFailed(f"peer {short(pull.peer)} ended a piece early")
            data += chunk
            self._pace.received["blob"] += len(chunk)
            link.bytes_read += len(chunk)
            pull.last_byte_at = swarm.progress_at = self._pace.clock()
            if len(chunk) < TRICKLE:
                await asyncio.sleep(TRICKLE_S)


def condemn(pace: PeerMeasurements, peer: bytes, digest: bytes, lie: str) -> None:
    """Blame a peer for false data. Warn only the first time; later ones are debug messages."""
    news = not pace.is_blamed(peer)
    level = logging.WARNING if news else logging.DEBUG
    log.log(level, "blob %s: peer %s %s", digest.hex()[:10], short(peer), lie)
    pace.events["rejected"] += 1
    pace.blamed(peer)
