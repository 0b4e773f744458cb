"""Fetch one blob from several holders: ranges, resume, helpers and blame.

One worker per holder pulls ranges. If a holder dies or stalls, others fetch the bytes that it has
not delivered. Bytes that have arrived are requested again only if the digest turns out wrong. An
idle worker takes half of the longest rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial

import iroh

from aftermath.base.concurrency import cancel
from aftermath.base.rate_limit import Backoff
from aftermath.p2p.blobs import hash_of
from aftermath.p2p.connection_table import Links
from aftermath.p2p.lanes import MIN_LANE_BYTES
from aftermath.p2p.limits import LogLimits
from aftermath.p2p.line_faults import GOOD_LINE, MemberLine
from aftermath.p2p.partial_download import LEAST_PROGRESS, STRIPE_FROM, PartialBlob, Pull, Source
from aftermath.p2p.peer_connection import Link
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.pieces import PIECE
from aftermath.p2p.transport import (
    BlobRejected,
    BlobUnavailable,
    PeerUnreachable,
    TransportError,
    short,
)
from aftermath.p2p.wire import (
    BlobRequest,
    Code,
    ProtocolViolation,
    Reply,
    ReplyStatus,
    cause,
    frame_of,
    read_message,
)

MOST_HOLDERS = 8
STRIKES = 3
PARTS_OF_DEADLINE = 3
"""Wait for a silent holder for at most a third of the deadline. A range may take a third of the
rest.
"""
TICK_S = 0.2
TRICKLE = 65536
TRICKLE_S = 0.02
"""Seconds to wait after a read below TRICKLE bytes, so that a slow sender does not cost many reads.
"""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

log = logging.getLogger(__name__)
_complaints = LogLimits(log)


class HolderFailed(Exception):
    """A holder cannot continue now. It may later."""


class HolderLied(Exception):
    """A holder sent false data about the blob. It is not asked again."""


class HolderLacks(Exception):
    """A holder does not have the blob. That is an honest answer, and it may have it later."""


class Fetch:
    """One call of `Transport.fetch`.

    If every active holder is silent or too slow for the deadline, the fetch asks one more. Waiting
    is counted in ticks, so that no holder is blamed for a pause of this process. The digest is
    checked at the end. If it is wrong and one holder gave everything, that holder lied. Otherwise
    holders are asked one at a time, and the one whose bytes differ from the verified blob is
    blamed.
    """

    def __init__(
        self,
        links: Links,
        pace: PeerMeasurements,
        digest: bytes,
        size: int,
        deadline_s: float,
        line: MemberLine = GOOD_LINE,
        author: bytes | None = None,
    ) -> None:
        self._author = author
        self._line = line
        self._links = links
        self._pace = pace
        self._digest = digest
        self._size = size
        self._deadline_s = deadline_s
        self._ends = pace.clock() + deadline_s
        self._waited: dict[Source, float] = {}
        self._strikes: Counter[bytes] = Counter()
        self._liars: set[bytes] = set()
        self._troubles: dict[bytes, str] = {}
        self._suspects: list[tuple[bytes, int, int, bytes]] = []

    async def run(self, holders: Sequence[bytes]) -> bytes:
        """Fetch and verify within the deadline; see `Transport.fetch` for what it raises."""
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._persist(holders)
        except TimeoutError as error:
            for holder in {holder for holder, _ in self._waited}:
                self._pace.failed(holder)
            raise BlobUnavailable(
                f"{self._name()} did not arrive within {self._deadline_s:.1f} s{self._why()}"
            ) from error

    async def _persist(self, holders: Sequence[bytes]) -> bytes:
        """Ask the holders in passes until the blob is verified. Keep what has arrived."""
        attempt = PartialBlob.of(self._size)
        alone = False
        turns = Counter[bytes]()
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            holders_to_ask = self._askable(holders)
            before = len(attempt.origin)
            if alone:
                holders_to_ask = [min(holders_to_ask, key=lambda one: turns[one])]
                turns[holders_to_ask[0]] += 1
            await self._pass(attempt, holders_to_ask)
            if len(attempt.origin) == before and not alone:
                await self._pass(
                    attempt,
                    [
                        one
                        for one in self._askable(holders, excluded=True)
                        if one not in holders_to_ask
                    ],
                )
            if attempt.complete:
                if await self._verified(attempt):
                    return bytes(attempt.buffer)
                alone = alone or len({holder for holder, _, _ in attempt.origin}) > 1
                attempt = PartialBlob.of(self._size)
            elif alone:
                attempt = PartialBlob.of(self._size)
                await asyncio.sleep(FIRST_PAUSE_S)
            elif len(attempt.origin) == before:
                await asyncio.sleep(pauses.next())

    def _askable(self, holders: Sequence[bytes], *, excluded: bool = False) -> list[bytes]:
        """Return the usable holders, best first. Raises BlobRejected or BlobUnavailable without
        any.
        """
        usable = [
            holder
            for holder in holders
            if holder not in self._liars and self._strikes[holder] < STRIKES
        ]
        if usable:
            return self._pace.ranked(
                usable, self._links.live(), self._size, excluded=excluded, author=self._author
            )
        if self._liars and self._liars >= set(holders):
            raise BlobRejected(
                f"{self._name()}: every holder sent false data{self._why()}",
                "Fetch it from other holders",
            )
        raise BlobUnavailable(f"{self._name()}: no holder is left to ask{self._why()}")

    async def _pass(self, attempt: PartialBlob, holders: list[bytes]) -> None:
        """Let holders work until the blob is full or each of them has failed once."""
        width = min(len(holders), MOST_HOLDERS) if self._size >= STRIPE_FROM else 1
        standby = deque(holders)
        running: set[asyncio.Task[None]] = set()
        tasks: list[asyncio.Task[None]] = []
        self._waited.clear()
        try:
            while not attempt.complete:
                while standby and len(running) < width:
                    holder = standby.popleft()
                    lanes = self._lanes(holder)
                    attempt.spread(1 + len(lanes))
                    tasks.append(asyncio.create_task(self._work(attempt, (holder, 0))))
                    running.add(tasks[-1])
                    for number, lane in enumerate(lanes, 1):
                        work = self._work(attempt, (holder, number), lane)
                        tasks.append(asyncio.create_task(work))
                        # Counted now, because further fetches may choose before the task starts.
                        lane.transfers += 1
                        tasks[-1].add_done_callback(partial(_end_transfer, lane))
                if not running:
                    return
                done, running = await asyncio.wait(
                    running, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if not done and self._need_help(attempt):
                    width = min(len(running) + 1, MOST_HOLDERS)
        finally:
            await cancel(tasks)

    def _lanes(self, holder: bytes) -> list[Link]:
        """Return the holder's lanes for a large blob.

        If the author is known, only its lanes are used: others may lack the blob.
        """
        if self._size < MIN_LANE_BYTES or self._author not in (None, holder):
            return []
        return self._links.lanes(holder)

    def _need_help(self, attempt: PartialBlob) -> bool:
        """Count a tick of waiting. Return whether no active holder will bring the rest in time."""
        hopeless = 0
        for source in self._waited:
            holder = source[0]
            self._waited[source] += TICK_S
            pull = attempt.active.get(source)
            silent = self._waited[source] >= min(self._pace.hedge(holder), self._patience(holder))
            slow = pull is not None and self._too_slow(pull)
            if pull is not None:
                pull.silent = silent
                pull.slow = slow
            if (silent or slow) and not source[1]:
                self._pace.late(holder)
            hopeless += silent or slow
        if hopeless:
            attempt.wake_workers()
        return 0 < hopeless == len(self._waited)

    def _too_slow(self, pull: Pull) -> bool:
        """Return whether the range would take more than its part of the remaining time."""
        now = self._pace.clock()
        spent = now - pull.started
        received = pull.position - pull.start
        if spent < self._pace.hedge(pull.holder) or not received:
            return False
        return pull.span.rest * spent / received > (self._ends - now) / PARTS_OF_DEADLINE

    def _patience(self, holder: bytes) -> float:
        """Return the seconds without progress after which to give up on a holder."""
        return min(self._pace.patience(holder), self._deadline_s / PARTS_OF_DEADLINE)

    async def _work(self, attempt: PartialBlob, source: Source, lane: Link | None = None) -> None:
        """Pull ranges from one holder, over its link or a lane, until the blob is full or the
        holder fails.
        """
        holder = source[0]
        link = lane
        try:
            while not attempt.complete:
                self._waited[source] = 0.0
                link = lane or await self._links.get(holder, self._patience(holder))
                pull = attempt.take(source, self._pace.clock())
                if pull is None:
                    del self._waited[source]
                    await attempt.changed.wait()
                    continue
                self._pace.events["retries"] += pull.joined
                try:
                    await self._pull(attempt, link, pull)
                finally:
                    attempt.release(pull)
        except HolderLied as lie:
            self._condemn(holder, str(lie))
        except TransportError as error:
            if not isinstance(error, PeerUnreachable):
                raise  # the transport is closed
            self._fault(holder, str(error), strike=False)
        # Any error in a holder's data is the holder's fault and must not end this member.
        except Exception as error:
            if lane is None:
                was_open = link is not None and link.connection.close_reason() is None
                self._blame(holder, error, was_open=was_open)
            elif not isinstance(error, HolderLacks):
                self._give_up_lane(lane, error)
        self._waited.pop(source, None)

    def _blame(self, holder: bytes, error: Exception, *, was_open: bool) -> None:
        """Count a failure on a holder's link. `was_open`: whether the link was open then."""
        if isinstance(error, HolderLacks):
            self._strikes[holder] += 1
            self._troubles[holder] = str(error)
        elif isinstance(error, iroh.IrohError):
            self._fault(holder, cause(error), strike=was_open)
        elif isinstance(error, HolderFailed | ProtocolViolation):
            self._fault(holder, str(error), strike=True)
        elif isinstance(error, TimeoutError):
            self._fault(holder, f"no progress for {self._patience(holder):.1f} s", strike=True)
        else:
            _complaints.failure("fetching from", holder, error)
            self._fault(holder, f"caused a {type(error).__name__} in this client", strike=True)

    def _give_up_lane(self, lane: Link, error: Exception) -> None:
        """Close a lane that failed. Its ranges go to the holder's link."""
        # Only the link counts against the holder. Otherwise one pause of an honest author would
        # cost as many strikes as it has connections.
        log.debug("%s: a lane to peer %s: %s", self._name(), short(lane.peer), cause(error))
        self._pace.events["retries"] += 1
        lane.close(Code.STALLED, "a transfer failed")

    async def _pull(self, attempt: PartialBlob, link: Link, pull: Pull) -> None:
        """Ask one holder for one range and read it into the buffer, as far as it gets."""
        try:
            await self._read(attempt, link, pull)
        finally:
            link.give_up(pull.request_end - pull.position)
        if pull.leads:
            self._pace.delivered(
                link.peer, pull.position - pull.start, self._pace.clock() - pull.started
            )

    async def _read(self, attempt: PartialBlob, link: Link, pull: Pull) -> None:
        patience = self._patience(pull.holder)
        await self._line.send(0)
        async with asyncio.timeout(patience):
            stream = await link.connection.open_bi()
            request = BlobRequest(self._digest, pull.start, pull.request_end - pull.start)
            await stream.send().write_all(frame_of(request))
            await stream.send().finish()
            reply = await read_message(stream.recv(), Reply)
        self._check(reply)
        more = True
        while more:
            async with asyncio.timeout(patience):
                before = pull.position
                more = await self._progress(attempt, link, stream.recv(), pull)
            await self._line.download(pull.position - before)
        if pull.position < pull.request_end:
            await stream.recv().stop(0)

    def _check(self, reply: Reply) -> None:
        """Reject a holder before the first byte if its statement about the blob is impossible."""
        if reply.status == ReplyStatus.MISSING:
            raise HolderLacks("does not have it (any more)")
        if reply.size != self._size:
            raise HolderLied(f"states {reply.size} bytes")
        if reply.status != ReplyStatus.OK:
            raise HolderFailed("refused to send it")

    async def _progress(
        self, attempt: PartialBlob, link: Link, stream: iroh.RecvStream, pull: Pull
    ) -> bool:
        """Read at least LEAST_PROGRESS bytes, or raise. Return False if no more are needed."""
        goal = pull.position + LEAST_PROGRESS
        while pull.position < goal:
            most = self._line.download_piece(PIECE)
            chunk = await stream.read(min(most, pull.request_end - pull.position))
            if not chunk:
                raise HolderFailed(f"ended early at byte {pull.position}")
            self._pace.received["blob"] += len(chunk)
            link.bytes_read += len(chunk)
            self._waited[pull.source] = 0.0
            if not attempt.put(pull, chunk):
                return False
            if len(chunk) < TRICKLE:
                await asyncio.sleep(TRICKLE_S)
        return True

    async def _verified(self, attempt: PartialBlob) -> bool:
        """Check the digest. If it is wrong, record who is to blame, or who may be."""
        digest = await asyncio.to_thread(hash_of, attempt.buffer)
        if digest == self._digest:
            for holder, start, end, piece_digest in self._suspects:
                if hash_of(attempt.buffer[start:end]) != piece_digest:
                    self._condemn(holder, "sent bytes that are not the blob's")
            return True
        senders = {holder for holder, _, _ in attempt.origin}
        if len(senders) == 1:
            self._condemn(senders.pop(), "sent bytes with another BLAKE3 hash")
        else:
            log.warning(
                "%s from %d holders has the wrong hash; asking them one by one",
                self._name(),
                len(senders),
            )
            self._suspects += [
                (who, a, b, hash_of(attempt.buffer[a:b])) for who, a, b in attempt.origin
            ]
        return False

    def _condemn(self, holder: bytes, lie: str) -> None:
        """Stop asking a holder that lied. Further lies add nothing."""
        if holder in self._liars:
            return
        # otherwise a peer could fill our log with lies
        news = not self._pace.is_blamed(holder)
        log.log(
            logging.WARNING if news else logging.DEBUG,
            "%s: peer %s %s",
            self._name(),
            short(holder),
            lie,
        )
        self._liars.add(holder)
        self._troubles[holder] = lie
        self._pace.events["rejected"] += 1
        self._pace.blamed(holder)

    def _fault(self, holder: bytes, trouble: str, *, strike: bool) -> None:
        """Record a failure. A holder with STRIKES failures of its own is not asked again."""
        log.debug("%s: peer %s: %s", self._name(), short(holder), trouble)
        self._strikes[holder] += strike
        self._troubles[holder] = trouble
        self._pace.events["retries"] += 1
        self._pace.failed(holder)

    def _name(self) -> str:
        return f"blob {self._digest.hex()[:10]} ({self._size} bytes)"

    def _why(self) -> str:
        """Return the reason against each holder."""
        if not self._troubles:
            return ""
        return ": " + "; ".join(
            f"peer {short(holder)}: {trouble}" for holder, trouble in sorted(self._troubles.items())
        )


def _end_transfer(lane: Link, _: asyncio.Task[None]) -> None:
    lane.transfers -= 1
