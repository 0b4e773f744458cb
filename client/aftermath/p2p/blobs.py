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

from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.transport import ReadRange
from aftermath.p2p.wire import BlobRequest, Code, Reply, ReplyStatus, frame_of

PIECE = 1 << 20
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

    def __init__(self) -> None:
        self._blobs: dict[bytes, Blob] = {}
        self._data: dict[bytes, bytes] = {}
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

    def held(self, digest: bytes, size: int) -> bytes | None:
        """Return the blob if its bytes are held here and have this size."""
        data = self._data.get(digest)
        return data if data is not None and len(data) == size else None

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
        async with asyncio.timeout(PIECE_S):
            await stream.write_all(frame_of(Reply(ReplyStatus.OK, blob.size)))
        offset = request.offset
        end = request.offset + request.length
        while offset < end:
            large = self._large < LARGE_PIECES
            self._large += large
            try:
                sent = await _send_piece(
                    blob, offset, min(PIECE if large else SMALL_PIECE, end - offset), stream
                )
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
