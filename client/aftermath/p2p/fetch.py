"""Fetching one blob from several holders: ranges, resume, blame.

Decisions: a small blob is one range, a large one many, pulled by one worker per holder. A holder that dies or stalls
hands its unread rest to the others, so no byte that arrived is asked for twice. An idle worker takes half of the
longest rest. The digest is checked at the end; if it is wrong and one holder gave everything, it is the liar, else
holders are asked one at a time and whoever's bytes differ from the verified blob is blamed.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import iroh
from blake3 import blake3

from aftermath.p2p.blobs import PIECE, THREADED_HASH
from aftermath.p2p.link import Link
from aftermath.p2p.links import Links
from aftermath.p2p.pace import PATIENCE_S, Pace
from aftermath.p2p.transport import BlobRejected, BlobUnavailable, PeerUnreachable, short
from aftermath.p2p.wire import BlobRequest, ProtocolViolation, Reply, Status, cause, frame_of, read_message

STRIPE_FROM = 8 << 20
RANGE = 4 << 20
WORTH_STEALING = 2 << 20
MOST_HOLDERS = 8
STRIKES = 3
LEAST_PROGRESS = 32768
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

log = logging.getLogger(__name__)


class HolderFailed(Exception):
    """A holder cannot go on now; asked again later it may."""


class HolderLied(Exception):
    """A holder stated something about the blob that is false; it is not asked again for it."""


@dataclass(eq=False)
class Span:
    """Bytes [position, end) still to come; `end` shrinks when another worker takes the tail."""

    position: int
    end: int


@dataclass
class Attempt:
    """A blob being filled. `origin` notes who gave which bytes."""

    size: int
    buffer: bytearray
    todo: deque[Span]
    active: dict[bytes, Span] = field(default_factory=dict)
    origin: list[tuple[bytes, int, int]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, size: int) -> "Attempt":
        """An empty one; large blobs are cut into ranges."""
        step = RANGE if size >= STRIPE_FROM else size
        spans = deque(Span(start, min(start + step, size)) for start in range(0, size, step))
        return cls(size, bytearray(size), spans)

    @property
    def complete(self) -> bool:
        """True when every byte arrived."""
        return not self.todo and not self.active

    def take(self, holder: bytes) -> Span | None:
        """Work for an idle worker: the next range, or half of the longest rest; None if there is nothing now."""
        if self.todo:
            span = self.todo.popleft()
        else:
            longest = max(self.active.values(), key=lambda one: one.end - one.position, default=None)
            if longest is None or longest.end - longest.position < WORTH_STEALING:
                return None
            middle = (longest.position + longest.end) // 2
            span = Span(middle, longest.end)
            longest.end = middle
        self.active[holder] = span
        return span

    def release(self, holder: bytes, start: int) -> None:
        """Note what a worker brought since `start` and put what it did not bring back."""
        span = self.active.pop(holder)
        if span.position > start:
            self.origin.append((holder, start, span.position))
        if span.position < span.end:
            self.todo.appendleft(span)
        self.changed.set()
        self.changed = asyncio.Event()


class Fetch:
    """One call of `Transport.fetch`."""

    def __init__(self, links: Links, pace: Pace, digest: bytes, size: int) -> None:
        self._links = links
        self._pace = pace
        self._digest = digest
        self._size = size
        self._strikes: Counter[bytes] = Counter()
        self._liars: set[bytes] = set()
        self._troubles: dict[bytes, str] = {}
        self._suspects: list[tuple[bytes, int, int, bytes]] = []

    async def run(self, holders: Sequence[bytes], deadline_s: float) -> bytes:
        """Fetch and verify within the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self._persist(holders)
        except TimeoutError as error:
            raise BlobUnavailable(f"{self._name()} did not arrive within {deadline_s:.1f} s{self._why()}") from error

    async def _persist(self, holders: Sequence[bytes]) -> bytes:
        """Pass over the holders again and again, keeping what arrived, until verified or nobody is left to ask."""
        attempt = Attempt.of(self._size)
        pause, turn, alone = FIRST_PAUSE_S, 0, False
        while True:
            asked = self._askable(holders)
            before = len(attempt.origin)
            await self._pass(attempt, [asked[turn % len(asked)]] if alone else asked)
            if attempt.complete:
                if await self._verified(attempt):
                    return bytes(attempt.buffer)
                alone = alone or len({holder for holder, _, _ in attempt.origin}) > 1
                attempt = Attempt.of(self._size)
            elif alone:
                attempt, turn = Attempt.of(self._size), turn + 1
                await asyncio.sleep(FIRST_PAUSE_S)
            elif len(attempt.origin) == before:
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE_S, 2 * pause)

    def _askable(self, holders: Sequence[bytes]) -> list[bytes]:
        """Holders worth asking, best first; BlobRejected or BlobUnavailable if none is left."""
        left = [one for one in holders if one not in self._liars and self._strikes[one] < STRIKES]
        if left:
            return self._pace.ranked(left, self._links.live())
        if self._liars and self._liars >= set(holders):
            raise BlobRejected(f"{self._name()}: every holder lied about it{self._why()}", "get it from others")
        raise BlobUnavailable(f"{self._name()}: no holder is left to ask{self._why()}")

    async def _pass(self, attempt: Attempt, asked: list[bytes]) -> None:
        """Let holders work until the blob is full or each of them has failed once."""
        width = min(len(asked), MOST_HOLDERS) if self._size >= STRIPE_FROM else 1
        standby = deque(asked)
        running: set[asyncio.Task[None]] = set()
        try:
            while not attempt.complete:
                while standby and len(running) < width:
                    running.add(asyncio.create_task(self._work(attempt, standby.popleft())))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _work(self, attempt: Attempt, holder: bytes) -> None:
        """Pull ranges from one holder until the blob is full or the holder fails; the failure is noted."""
        try:
            while not attempt.complete:
                link = await self._links.get(holder, PATIENCE_S)
                span = attempt.take(holder)
                if span is None:
                    await attempt.changed.wait()
                    continue
                start = span.position
                try:
                    await self._pull(attempt, link, span)
                finally:
                    attempt.release(holder, start)
        except HolderLied as lie:
            self._condemn(holder, str(lie))
        except PeerUnreachable as error:
            self._fault(holder, str(error), strike=False)
        except iroh.IrohError as error:
            self._fault(holder, cause(error), strike=link.connection.close_reason() is None)
        except (HolderFailed, ProtocolViolation) as error:
            self._fault(holder, str(error), strike=True)
        except TimeoutError:
            self._fault(holder, f"no progress for {self._pace.patience(holder):.1f} s", strike=True)

    async def _pull(self, attempt: Attempt, link: Link, span: Span) -> None:
        """Ask one holder for one range and read it into the buffer, as far as it gets."""
        began, start, asked_end = self._pace.clock(), span.position, span.end
        async with asyncio.timeout(self._pace.patience(link.peer)):
            stream = await link.connection.open_bi()
            request = BlobRequest(self._digest, start, asked_end - start)
            await stream.send().write_all(frame_of(request))
            await stream.send().finish()
            reply = await read_message(stream.recv(), Reply)
        self._check(reply)
        while span.position < span.end:
            async with asyncio.timeout(self._pace.patience(link.peer)):
                await self._progress(attempt, stream.recv(), span, asked_end)
        if span.end < asked_end:
            await stream.recv().stop(0)
        self._pace.delivered(link.peer, span.position - start, self._pace.clock() - began)

    def _check(self, reply: Reply) -> None:
        """Refuse a holder before the first byte if what it says about the blob cannot be."""
        if reply.status == Status.MISSING:
            raise HolderFailed("does not have it (any more)")
        if reply.size != self._size:
            raise HolderLied(f"states {reply.size} bytes")
        if reply.status != Status.OK:
            raise HolderFailed("refused to send it")

    async def _progress(self, attempt: Attempt, stream: iroh.RecvStream, span: Span, asked_end: int) -> None:
        """Read at least LEAST_PROGRESS bytes, so that a trickle does not count as progress."""
        goal = span.position + LEAST_PROGRESS
        while span.position < min(goal, span.end):
            chunk = await stream.read(min(PIECE, asked_end - span.position))
            if not chunk:
                raise HolderFailed(f"ended early at byte {span.position}")
            self._pace.received["blob"] += len(chunk)
            fits = max(0, min(len(chunk), span.end - span.position))
            attempt.buffer[span.position : span.position + fits] = chunk if fits == len(chunk) else chunk[:fits]
            span.position += fits

    async def _verified(self, attempt: Attempt) -> bool:
        """Check the digest; if it is wrong note who is to blame, or who may be."""
        found = await asyncio.to_thread(_digest, attempt.buffer)
        if found == self._digest:
            for holder, start, end, given in self._suspects:
                if _digest(attempt.buffer[start:end]) != given:
                    self._condemn(holder, "sent bytes that are not the blob's")
            return True
        givers = {holder for holder, _, _ in attempt.origin}
        if len(givers) == 1:
            self._condemn(givers.pop(), "sent bytes with another BLAKE3 hash")
        else:
            log.warning("%s from %d holders has the wrong hash; asking them one by one", self._name(), len(givers))
            self._suspects += [(who, a, b, _digest(attempt.buffer[a:b])) for who, a, b in attempt.origin]
        return False

    def _condemn(self, holder: bytes, lie: str) -> None:
        """Ask a liar no more; what else it is found to have lied about adds nothing."""
        if holder in self._liars:
            return
        log.warning("%s: peer %s %s", self._name(), short(holder), lie)
        self._liars.add(holder)
        self._troubles[holder] = lie
        self._pace.events["rejected"] += 1
        self._pace.blamed(holder)

    def _fault(self, holder: bytes, trouble: str, *, strike: bool) -> None:
        """Note a failure; after STRIKES of the holder's own making it is asked no more."""
        log.debug("%s: peer %s: %s", self._name(), short(holder), trouble)
        self._strikes[holder] += strike
        self._troubles[holder] = trouble
        self._pace.events["retries"] += 1
        self._pace.failed(holder)

    def _name(self) -> str:
        return f"blob {self._digest.hex()[:10]} ({self._size} bytes)"

    def _why(self) -> str:
        """What stood against each holder."""
        if not self._troubles:
            return ""
        return ": " + "; ".join(f"peer {short(one)}: {what}" for one, what in sorted(self._troubles.items()))


def _digest(data: bytes | bytearray) -> bytes:
    """BLAKE3 of `data`, on all cores if it is large."""
    return blake3(data, max_threads=blake3.AUTO if len(data) >= THREADED_HASH else 1).digest()
