"""Store blobs and serve ranges of them.

A blob is bytes named by their BLAKE3 digest. The store holds them (`publish`), or a function
produces them piece by piece (`publish_source`), so a model needs no second copy in memory. Nothing
is evicted. Pieces have long deadlines, because a member with little uplink serves many peers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import iroh
from blake3 import blake3

from aftermath.p2p.line_faults import GOOD_LINE, MemberLine
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.pieces import PIECE, Pieces
from aftermath.p2p.transport import ReadRange
from aftermath.p2p.wire import BlobRequest, Code, PieceRequest, Reply, ReplyStatus, frame_of

SMALL_PIECE = 1 << 16
LARGE_PIECES = 64
"""Number of large pieces in flight, over all streams. Further streams send small ones."""
PIECE_S = 120.0
_THREADED = 1 << 20


@dataclass(frozen=True)
class Blob:
    """A blob that can be served. `blocking`: `read` may take long and belongs on a thread."""

    size: int
    read: ReadRange
    blocking: bool


class BlobStore:
    """Blobs by digest."""

    def __init__(self, line: MemberLine = GOOD_LINE) -> None:
        self._line = line
        self._blobs: dict[bytes, Blob] = {}
        self._data: dict[bytes, bytes] = {}
        self._pieces: dict[bytes, Pieces] = {}
        self._hashing: dict[bytes, asyncio.Task[Pieces]] = {}
        self._large = 0

    def publish(self, data: bytes) -> bytes:
        """Keep `data` and return its digest. Raises ValueError if it is empty."""
        if not data:
            raise ValueError("a blob has at least one byte")
        digest = hash_of(data)
        self.keep(digest, data)
        return digest

    def keep(self, digest: bytes, data: bytes) -> None:
        """Keep `data` whose digest is already known to be right."""
        self._data[digest] = data
        self._blobs[digest] = Blob(
            len(data), lambda offset, length: data[offset : offset + length], False
        )

    def publish_source(self, digest: bytes, size: int, read: ReadRange) -> None:
        """Serve a blob that `read` produces."""
        if len(digest) != 32 or size < 1:
            raise ValueError(
                f"a blob needs a 32-byte digest and a size >= 1, not {len(digest)} bytes and {size}"
            )
        self._blobs[digest] = Blob(size, read, True)

    def retract(self, digest: bytes) -> None:
        """Forget a blob."""
        self._blobs.pop(digest, None)
        self._data.pop(digest, None)
        self._pieces.pop(digest, None)

    def held(self, digest: bytes, size: int) -> bytes | None:
        """Return the blob if its bytes are held here and have this size."""
        data = self._data.get(digest)
        return data if data is not None and len(data) == size else None

    def share(self, digest: bytes, pieces: Pieces) -> None:
        """Serve the pieces of a blob that have arrived so far."""
        self._pieces[digest] = pieces

    def unshare(self, digest: bytes) -> None:
        """Stop serving the pieces of a failed fetch."""
        self._pieces.pop(digest, None)

    async def pieces(self, digest: bytes) -> Pieces | None:
        """Return the pieces of a blob that this member has, completely or in part."""
        pieces = self._pieces.get(digest)
        data = self._data.get(digest)
        if pieces is not None or data is None:
            return pieces
        if digest not in self._hashing:  # hash once for all members that ask at the same time
            hashing = asyncio.create_task(asyncio.to_thread(Pieces.whole, data))
            hashing.add_done_callback(lambda _: self._hashing.pop(digest, None))
            self._hashing[digest] = hashing
        whole = await asyncio.shield(self._hashing[digest])
        if digest in self._data:
            self._pieces.setdefault(digest, whole)
        return whole

    async def serve_piece(
        self, request: PieceRequest, stream: iroh.SendStream, pace: PeerMeasurements
    ) -> None:
        """Answer one request for a verified piece."""
        pieces = await self.pieces(request.digest)
        if pieces is None or pieces.listing != request.listing or not pieces.holds(request.index):
            await _finish_with(stream, Reply(ReplyStatus.MISSING, 0))
            return
        data = pieces.data
        blob = Blob(
            pieces.size, lambda offset, length: bytes(data[offset : offset + length]), False
        )
        start = request.index * PIECE
        piece = BlobRequest(request.digest, start, pieces.length(request.index))
        await self._send_range(blob, piece, stream, pace)

    async def serve(
        self, request: BlobRequest, stream: iroh.SendStream, pace: PeerMeasurements
    ) -> None:
        """Answer one request for a range."""
        blob = self._blobs.get(request.digest)
        if blob is None:
            await _finish_with(stream, Reply(ReplyStatus.MISSING, 0))
        elif request.offset + request.length > blob.size:
            await _finish_with(stream, Reply(ReplyStatus.REFUSED, blob.size))
        else:
            await self._send_range(blob, request, stream, pace)

    async def _send_range(
        self, blob: Blob, request: BlobRequest, stream: iroh.SendStream, pace: PeerMeasurements
    ) -> None:
        """Send the reply and the range. Reset the stream if the blob cannot deliver or the reader
        stalls.
        """
        await self._line.send(0)
        async with asyncio.timeout(PIECE_S):
            await stream.write_all(frame_of(Reply(ReplyStatus.OK, blob.size)))
        offset = request.offset
        end = request.offset + request.length
        while offset < end:
            large = self._large < LARGE_PIECES
            self._large += large
            most = self._line.upload_piece(PIECE if large else SMALL_PIECE)
            length = min(most, end - offset)
            try:
                await self._line.upload(length)
                sent = await _send_piece(blob, offset, length, stream)
            finally:
                self._large -= large
            if not sent:
                await stream.reset(int(Code.STALLED))
                return
            pace.sent["blob"] += sent
            offset += sent
        await stream.finish()


async def _finish_with(stream: iroh.SendStream, reply: Reply) -> None:
    """Send a reply that carries no data."""
    async with asyncio.timeout(PIECE_S):
        await stream.write_all(frame_of(reply))
        await stream.finish()


async def _send_piece(blob: Blob, offset: int, length: int, stream: iroh.SendStream) -> int:
    """Send `length` bytes. Return how many were sent: none if the blob could not give them."""
    piece = (
        await asyncio.to_thread(blob.read, offset, length)
        if blob.blocking
        else blob.read(offset, length)
    )
    if len(piece) != length:
        return 0
    async with asyncio.timeout(PIECE_S):
        await stream.write_all(piece)
    return length


def hash_of(data: bytes | bytearray) -> bytes:
    """BLAKE3, on all cores if there is much of it."""
    return blake3(data, max_threads=blake3.AUTO if len(data) >= _THREADED else 1).digest()
