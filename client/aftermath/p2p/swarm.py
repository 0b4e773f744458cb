"""Fetch large blobs in pieces from their author and from members that have some pieces already.

The author of a blob sends the hashes of its pieces, and members tell each other which pieces they
hold. Each piece is verified as it arrives and served at once. All blobs in progress share a few
requests to each peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from aftermath.base.bounded import Malformed, msgpack_as
from aftermath.base.concurrency import Pulse, cancel
from aftermath.p2p.blobs import BlobStore, hash_of
from aftermath.p2p.connection_table import Links
from aftermath.p2p.limits import REMEMBERED_PEERS
from aftermath.p2p.line_faults import GOOD_LINE, MemberLine
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.piece_choice import PieceFetch, PiecePull, strongest
from aftermath.p2p.piece_pull import PiecePuller, condemn
from aftermath.p2p.pieces import HASH, Pieces, piece_count
from aftermath.p2p.requests import Requests
from aftermath.p2p.transport import (
    BlobUnavailable,
    PeerUnreachable,
    RequestRefused,
    TransportError,
    short,
)

LIST_TOPIC = "piece-hashes/1"
HELD_TOPIC = "held-pieces/1"
PIPELINE = 2
"""Requests for pieces to one peer at a time, over all blobs. Several hide the round trip."""
POLL_S = 0.5
POLLS_PER_S = 200
"""Most questions per second to all peers together."""
MOST_ASKED = 48
"""Blobs in one question to a peer; 70 bytes each, within MAX_REQUEST."""
MOST_RELAYS = 16
"""Members besides the author that one blob is fetched from."""
HASHES_S = 15.0
"""Timeout for an author's list. The author hashes the blob when the first member asks."""
RETRY_S = 2.0
ABANDON_S = 10.0
"""Seconds without a byte after which the caller must fetch the blob as a whole."""
SLACK = 2.0
LEAST_EXPECTED_S = 8.0
"""Minimum expected duration of a fetch in seconds.

A fetch needs seconds to find out which members hold which pieces.
"""
DOUBT_S = 600.0
"""Seconds for which a fetch does not rely on a member that left another fetch waiting."""
UPLINK_SAMPLE_S = 1.0
UPLINK_HALF_LIFE_S = 300.0
UPLINK_LEAST = 64e3
"""Lowest rate of a sample that counts, in bytes per second."""
UPLINK_SAMPLES = 5
"""Samples that a member needs before it reports a rate."""
IDLE_S = 0.5

log = logging.getLogger(__name__)


class HeldQuestion(msgspec.Struct, array_like=True, frozen=True):
    """Asks which pieces a peer has of these blobs: pairs of digest and listing."""

    blobs: list[tuple[bytes, bytes]]


class HeldReply(msgspec.Struct, array_like=True, frozen=True):
    """Answers with the upload rate in bytes per second, and `Pieces.status` for each blob."""

    uplink: int
    status: list[bytes]


class Uplink:
    """Estimates this member's upload rate: the highest recent rate at which QUIC sent.

    The rate is unknown until the member has sent enough.
    """

    def __init__(self, links: Links, pace: PeerMeasurements) -> None:
        self._links = links
        self._pace = pace
        self._at = pace.clock()
        self._sent = 0
        self._rate = 0.0
        self._samples = 0

    def rate(self) -> float:
        """Return the rate in bytes per second, or 0 if it is unknown."""
        now = self._pace.clock()
        passed = now - self._at
        if passed >= UPLINK_SAMPLE_S:
            sent = self._links.bytes_sent()
            measured = max(0, sent - self._sent) / passed
            self._rate = max(measured, self._rate * 0.5 ** (passed / UPLINK_HALF_LIFE_S))
            self._samples += measured >= UPLINK_LEAST
            self._at = now
            self._sent = sent
        return self._rate if self._samples >= UPLINK_SAMPLES else 0.0


class Swarms:
    """Fetches blobs in pieces, and blames the member at fault.

    The sender is at fault for a piece that does not match its hash. The author is at fault if all
    pieces match their hashes, but the blob does not match its digest: the list was false.
    """

    def __init__(
        self,
        me: bytes,
        links: Links,
        requests: Requests,
        store: BlobStore,
        pace: PeerMeasurements,
        line: MemberLine = GOOD_LINE,
    ) -> None:
        self._me = me
        self._links = links
        self._requests = requests
        self._store = store
        self._pace = pace
        self._uplink = Uplink(links, pace)
        self._active: dict[bytes, PieceFetch] = {}
        self._tasks: dict[bytes, list[asyncio.Task[None]]] = {}
        self._heard: defaultdict[bytes, Pulse] = defaultdict(Pulse)
        self._uplinks: dict[bytes, float] = {}
        self._doubted_until: dict[bytes, float] = {}
        """When to rely again on each member that claimed a high rate, but left a fetch waiting."""
        self._puller = PiecePuller(links, pace, line)
        requests.handle(LIST_TOPIC, self._answer_list)
        requests.handle(HELD_TOPIC, self._answer_held)

    async def fetch(
        self, digest: bytes, size: int, author: bytes, holders: Sequence[bytes], deadline_s: float
    ) -> bytes | None:
        """Return the verified blob, or None if it must be fetched as a whole.

        Raises BlobUnavailable if the deadline passes.
        """
        if digest in self._active or self._pace.is_blamed(author):
            return None
        try:
            async with asyncio.timeout(deadline_s):
                hashes = await self._hashes(author, digest, size)
                if hashes is None:
                    return None
                return await self._gather(
                    self._begin(digest, size, hashes, author, holders, deadline_s)
                )
        except TimeoutError as error:
            raise BlobUnavailable(
                f"blob {digest.hex()[:10]} ({size} bytes) did not arrive in pieces within "
                f"{deadline_s:.1f} s"
            ) from error

    async def close(self) -> None:
        """Cancel all requests."""
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        self._tasks.clear()
        await cancel(tasks)

    # --- requests from peers ---

    async def _answer_list(self, peer: bytes, body: bytes) -> bytes:
        pieces = await self._store.pieces(body)
        if pieces is None:
            raise RequestRefused("not held")
        return pieces.hashes

    async def _answer_held(self, peer: bytes, body: bytes) -> bytes:
        try:
            question: HeldQuestion = msgpack_as(body, HeldQuestion)
        except Malformed as error:
            raise RequestRefused("malformed") from error
        status = []
        for digest, listing in question.blobs[:MOST_ASKED]:
            pieces = await self._store.pieces(digest)
            same = pieces is not None and pieces.listing == listing
            status.append(pieces.status() if pieces is not None and same else b"")
        return msgspec.msgpack.encode(HeldReply(int(self._uplink.rate()), status))

    # --- one blob ---

    async def _hashes(self, author: bytes, digest: bytes, size: int) -> bytes | None:
        """Return the author's list of hashes, or None if it sends no valid one."""
        most = HASH * piece_count(size)
        try:
            hashes = await self._requests.call(
                self._links, author, LIST_TOPIC, digest, most, HASHES_S
            )
        except PeerUnreachable as error:
            log.debug("no list of pieces from %s: %s", short(author), error)
            return None
        if len(hashes) != most:
            condemn(self._pace, author, digest, f"sent {len(hashes)} bytes of hashes, not {most}")
            return None
        return hashes

    def _begin(
        self,
        digest: bytes,
        size: int,
        hashes: bytes,
        author: bytes,
        holders: Sequence[bytes],
        deadline_s: float,
    ) -> PieceFetch:
        """Start a fetch. Its first piece depends on this member's rank among the fetchers."""
        fetchers = sorted({self._me, *holders} - {author})
        rank = fetchers.index(self._me)
        strong = self._strong({self._me, *holders})
        others = [*fetchers[rank + 1 :], *fetchers[:rank]]
        others.sort(key=lambda peer: peer not in strong)
        pieces = Pieces(size, hashes, bytearray(size))
        swarm = PieceFetch(
            digest=digest,
            author=author,
            me=self._me,
            pieces=pieces,
            first=rank * pieces.count // len(fetchers),
            started=self._pace.clock(),
            expected_s=self._expected_s(author, size * len(fetchers), deadline_s),
            progress_at=self._pace.clock(),
            strong=strong,
            sources={author, *others[:MOST_RELAYS]},
        )
        self._active[digest] = swarm
        self._store.share(digest, pieces)
        for peer in swarm.sources:
            self._heard[peer].fire()
            if peer not in self._tasks:
                self._tasks[peer] = [
                    asyncio.create_task(self._poll(peer)),
                    *(asyncio.create_task(self._work(peer)) for _ in range(PIPELINE)),
                ]
        return swarm

    async def _gather(self, swarm: PieceFetch) -> bytes | None:
        """Wait for all pieces and check the blob's digest. Return None if the fetch failed."""
        data = None
        try:
            while not swarm.pieces.complete:
                await self._changes(swarm)
                quiet = self._pace.clock() - swarm.progress_at
                if swarm.failed or quiet > ABANDON_S:
                    return None
            if await asyncio.to_thread(hash_of, swarm.pieces.data) != swarm.digest:
                condemn(
                    self._pace,
                    swarm.author,
                    swarm.digest,
                    "sent piece hashes that do not match the blob",
                )
                return None
            data = bytes(swarm.pieces.data)
            swarm.pieces.data = data
            return data
        finally:
            self._doubt(swarm.unreliable())
            swarm.ended = True
            del self._active[swarm.digest]
            if data is None:
                self._store.unshare(swarm.digest)
            try:
                await self._dismiss()
            except asyncio.CancelledError:
                self._store.unshare(swarm.digest)  # nobody will know that the pieces are here
                raise

    async def _changes(self, swarm: PieceFetch) -> None:
        """Wait until the fetch changes, for at most IDLE_S."""
        swarm.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await swarm.changed.wait()

    def _doubt(self, members: frozenset[bytes]) -> None:
        """Stop relying on members that left a fetch waiting, for DOUBT_S."""
        until = self._pace.clock() + DOUBT_S
        for peer in members:
            self._doubted_until[peer] = until

    async def _dismiss(self) -> None:
        """Cancel the requests to peers that no blob in progress needs."""
        needed = {peer for swarm in self._active.values() for peer in swarm.sources}
        idle = [peer for peer in self._tasks if peer not in needed]
        for peer in idle:
            self._heard.pop(peer, None)
        await cancel([task for peer in idle for task in self._tasks.pop(peer)])

    def _expected_s(self, author: bytes, sent: int, deadline_s: float) -> float:
        """Return the seconds in which a blob should arrive, with or without relays.

        These are SLACK times what its author alone would need to send it to everybody, if it has
        reported its rate, and at most half of the time that the caller gives.
        """
        uplink = self._uplinks.get(author, 0.0)
        alone_s = sent / uplink if uplink else deadline_s
        return min(max(LEAST_EXPECTED_S, SLACK * alone_s), deadline_s / 2)

    def _strong(self, members: set[bytes]) -> frozenset[bytes]:
        """Return the members that relay a blob to the others: see `strongest`.

        A member with an unknown rate counts as the fastest, because only use reveals its rate.
        Doubts do not count if most members are doubted: then the lines are slow, not the members.
        """
        now = self._pace.clock()
        others = members - {self._me}
        doubted = {peer for peer in others if self._doubted_until.get(peer, 0.0) > now}
        if 2 * len(doubted) > len(others):
            doubted.clear()
        rates = {peer: self._uplinks.get(peer, 0.0) for peer in others - doubted}
        rates[self._me] = self._uplink.rate()
        fastest = max(rates.values())
        return strongest([(peer, rate or fastest) for peer, rate in rates.items()])

    # --- one peer ---

    async def _poll(self, peer: bytes) -> None:
        """Ask a peer which pieces it holds, again and again."""
        while True:
            await asyncio.sleep(
                max(POLL_S, len(self._tasks) / POLLS_PER_S)
                if await self._ask_held(peer)
                else RETRY_S
            )

    async def _ask_held(self, peer: bytes) -> bool:
        """Ask a peer once which pieces it holds. Return whether its answer was valid."""
        swarms = [swarm for swarm in self._active.values() if peer in swarm.sources][:MOST_ASKED]
        question = HeldQuestion([(swarm.digest, swarm.pieces.listing) for swarm in swarms])
        most = 32 + sum(len(swarm.pieces.status()) + 5 for swarm in swarms)
        try:
            answer = await self._requests.call(
                self._links,
                peer,
                HELD_TOPIC,
                msgspec.msgpack.encode(question),
                most,
                self._pace.patience(peer),
            )
            reply: HeldReply = msgpack_as(answer, HeldReply)
        except (TransportError, Malformed) as error:
            log.debug("peer %s did not say what it holds: %s", short(peer), error)
            return False
        if len(self._uplinks) > REMEMBERED_PEERS:
            self._uplinks.clear()
            self._doubted_until.clear()
        self._uplinks[peer] = max(0, reply.uplink)
        for swarm, status in zip(swarms, reply.status, strict=False):
            if peer in swarm.sources:
                swarm.note(peer, status)
        self._heard[peer].fire()
        return True

    async def _work(self, peer: bytes) -> None:
        """Fetch pieces from one peer, one after another."""
        while True:
            choice = self._choose(peer)
            if choice is None:
                await self._news_of(peer)
                continue
            swarm, index = choice
            now = self._pace.clock()
            pull = PiecePull(peer, index, now, now)
            swarm.begin(pull)
            try:
                await self._puller.pull(swarm, pull)
            finally:
                swarm.end(pull)
                swarm.changed.set()
            if swarm.pieces.holds(pull.index):
                self._note_work(peer)

    def _note_work(self, peer: bytes) -> None:
        """Count a piece of one blob as progress of all blobs that wait for this strong peer."""
        for swarm in self._active.values():
            if peer in swarm.strong:
                swarm.progress_at = self._pace.clock()

    async def _news_of(self, peer: bytes) -> None:
        """Wait until this peer reports what it holds, for at most IDLE_S, to notice stalls."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await self._heard[peer].wait()

    def _choose(self, peer: bytes) -> tuple[PieceFetch, int] | None:
        """Return the blob and piece to request next. The blob with the fewest requests is first."""
        now = self._pace.clock()
        swarms = sorted(self._active.values(), key=lambda one: len(one.pulls))
        for swarm in swarms:
            index = swarm.choose(peer, now, self._pace.hedge(peer))
            if index is not None:
                return swarm, index
        return None
