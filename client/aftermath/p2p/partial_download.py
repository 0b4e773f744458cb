"""A partly downloaded blob: missing bytes, active holders, and the sender of each byte.

The blob is cut into spans whose bytes arrive in order. Each span normally has one pull. If that
pull brings nothing, another one joins at the same position, and the first to bring a missing byte
leads. Each byte is written once, so blame stays exact.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

STRIPE_FROM = 8 << 20
RANGE = 4 << 20
WORTH_STEALING = 2 << 20
LEAST_PROGRESS = 32768
WORTH_STEALING_FROM_LANE = 4 * LEAST_PROGRESS
Source = tuple[bytes, int]
"""A holder, and the number of one of our connections to it."""


@dataclass(eq=False)
class BlobSpan:
    """Missing bytes [position, end). `end` shrinks when another worker takes the tail."""

    position: int
    end: int
    lead: Pull | None = None

    @property
    def rest(self) -> int:
        """Return the number of missing bytes."""
        return self.end - self.position

    def split(self) -> BlobSpan:
        """Give away the second half."""
        middle = (self.position + self.end) // 2
        tail = BlobSpan(middle, self.end)
        self.end = middle
        return tail


@dataclass(eq=False)
class Pull:
    """One holder's work on a span.

    `position` is the next byte it reads. It delivered the bytes [first_byte, end_byte) of the blob.
    `joined`: others already worked on the span. `silent` and `slow` are results of the last tick.
    """

    source: Source
    span: BlobSpan
    start: int
    request_end: int
    started: float
    position: int
    first_byte: int
    end_byte: int
    joined: bool
    led: bool = False
    silent: bool = False
    slow: bool = False

    @property
    def holder(self) -> bytes:
        """Return the peer that sends."""
        return self.source[0]

    @property
    def leads(self) -> bool:
        """Return whether its bytes are stored."""
        return self.span.lead is self


@dataclass
class PartialBlob:
    """The received bytes. `origin` records the sender of each range. `changed` fires when idle
    workers may find work.
    """

    buffer: bytearray
    todo: deque[BlobSpan]
    active: dict[Source, Pull] = field(default_factory=dict)
    origin: list[tuple[bytes, int, int]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, size: int) -> PartialBlob:
        """Return an empty blob. Large ones are cut into ranges."""
        step = RANGE if size >= STRIPE_FROM else size
        spans = deque(BlobSpan(start, min(start + step, size)) for start in range(0, size, step))
        return cls(bytearray(size), spans)

    @property
    def complete(self) -> bool:
        """Return whether every byte has arrived."""
        return not self.todo and not any(pull.span.rest for pull in self.active.values())

    def spread(self, workers: int) -> None:
        """Halve the longest waiting ranges until there is one for each worker."""
        while self.todo and len(self.todo) < workers:
            longest = max(self.todo, key=lambda one: one.rest)
            if longest.rest < WORTH_STEALING_FROM_LANE:
                return
            self.todo.append(longest.split())

    def take(self, source: Source, now: float) -> Pull | None:
        """Return work for an idle worker, or None.

        It is the next range, the rest of a silent pull, or half of the longest rest.
        """
        if self.todo:
            return self._begin(source, self.todo.popleft(), now)
        spans = list(dict.fromkeys(pull.span for pull in self.active.values() if pull.span.rest))
        stalled = [span for span in spans if all(pull.silent for pull in self._on(span))]
        if stalled:
            return self._begin(source, max(stalled, key=lambda one: one.rest), now)
        ours = [one for one in spans if {pull.holder for pull in self._on(one)} == {source[0]}]
        longest = max(ours, key=lambda one: one.rest, default=None)
        if longest is not None and longest.rest >= WORTH_STEALING_FROM_LANE:
            return self._begin(source, longest.split(), now)
        longest = max(spans, key=lambda one: one.rest, default=None)
        if longest is None or longest.rest < self._worth_stealing(longest):
            return None
        return self._begin(source, longest.split(), now)

    def _on(self, span: BlobSpan) -> list[Pull]:
        return [pull for pull in self.active.values() if pull.span is span]

    def _worth_stealing(self, span: BlobSpan) -> int:
        """Return the minimum number of missing bytes for which an idle worker takes over half.

        It is small if all pulls of the span are slow or silent.
        """
        hopeless = all(pull.silent or pull.slow for pull in self._on(span))
        return 2 * LEAST_PROGRESS if hopeless else WORTH_STEALING

    def _begin(self, source: Source, span: BlobSpan, now: float) -> Pull:
        at = span.position
        pull = Pull(source, span, at, span.end, now, at, at, at, joined=bool(self._on(span)))
        self.active[source] = pull
        return pull

    def put(self, pull: Pull, chunk: bytes) -> bool:
        """Store the bytes that are still missing. Return False if this pull is done."""
        span = pull.span
        at = pull.position
        pull.position += len(chunk)
        pull.silent = False
        if pull.led and not pull.leads:
            return False
        end = min(pull.position, span.end)
        if end > span.position:
            if not pull.leads:
                span.lead = pull
                pull.led = True
                pull.first_byte = span.position
            whole = span.position == at and end == pull.position
            self.buffer[span.position : end] = (
                chunk if whole else chunk[span.position - at : end - at]
            )
            span.position = pull.end_byte = end
        return span.rest > 0

    def release(self, pull: Pull) -> None:
        """Record the result of a pull. Requeue its rest if no other pull works on it."""
        del self.active[pull.source]
        if pull.led:
            self.origin.append((pull.holder, pull.first_byte, pull.end_byte))
        if pull.span.rest and not self._on(pull.span):
            self.todo.appendleft(pull.span)
        self.wake_workers()

    def wake_workers(self) -> None:
        """Wake idle workers."""
        self.changed.set()
        self.changed = asyncio.Event()
