"""A blob being downloaded: which bytes are missing, who is sending them, and who sent the rest.

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


@dataclass(eq=False)
class BlobSpan:
    """Missing bytes [position, end). `end` shrinks when another worker takes the tail."""

    position: int
    end: int
    lead: Pull | None = None

    @property
    def rest(self) -> int:
        """Bytes still missing."""
        return self.end - self.position


@dataclass(eq=False)
class Pull:
    """One holder's work on a span.

    `position` is the next byte it reads. It gave the bytes [given_from, given_to). `joined`: others
    already worked on the span. `silent` and `slow` are results of the last tick.
    """

    holder: bytes
    span: BlobSpan
    start: int
    asked_end: int
    began: float
    position: int
    given_from: int
    given_to: int
    joined: bool
    led: bool = False
    silent: bool = False
    slow: bool = False

    @property
    def leads(self) -> bool:
        """True while the bytes it brings count."""
        return self.span.lead is self


@dataclass
class PartialBlob:
    """Bytes so far. `origin` records who sent which bytes; `changed` is set when idle workers may
    find work.
    """

    size: int
    buffer: bytearray
    todo: deque[BlobSpan]
    active: dict[bytes, Pull] = field(default_factory=dict)
    origin: list[tuple[bytes, int, int]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, size: int) -> PartialBlob:
        """Return an empty blob. Large ones are cut into ranges."""
        step = RANGE if size >= STRIPE_FROM else size
        spans = deque(BlobSpan(start, min(start + step, size)) for start in range(0, size, step))
        return cls(size, bytearray(size), spans)

    @property
    def complete(self) -> bool:
        """True when every byte arrived."""
        return not self.todo and not any(pull.span.rest for pull in self.active.values())

    def take(self, holder: bytes, now: float) -> Pull | None:
        """Return work for an idle worker: the next range, a silent pull's rest, half of the longest
        rest, or None.
        """
        if self.todo:
            return self._begin(holder, self.todo.popleft(), now)
        spans = list(dict.fromkeys(pull.span for pull in self.active.values() if pull.span.rest))
        stalled = [span for span in spans if all(pull.silent for pull in self._on(span))]
        if stalled:
            return self._begin(holder, max(stalled, key=lambda one: one.rest), now)
        longest = max(spans, key=lambda one: one.rest, default=None)
        if longest is None or longest.rest < self._worth_stealing(longest):
            return None
        middle = (longest.position + longest.end) // 2
        tail = BlobSpan(middle, longest.end)
        longest.end = middle
        return self._begin(holder, tail, now)

    def _on(self, span: BlobSpan) -> list[Pull]:
        return [pull for pull in self.active.values() if pull.span is span]

    def _worth_stealing(self, span: BlobSpan) -> int:
        """The least rest of which to take half: little of those that will not make it, much of
        others.
        """
        hopeless = all(pull.silent or pull.slow for pull in self._on(span))
        return 2 * LEAST_PROGRESS if hopeless else WORTH_STEALING

    def _begin(self, holder: bytes, span: BlobSpan, now: float) -> Pull:
        at = span.position
        pull = Pull(holder, span, at, span.end, now, at, at, at, joined=bool(self._on(span)))
        self.active[holder] = pull
        return pull

    def put(self, pull: Pull, chunk: bytes) -> bool:
        """Store the bytes that are still missing. Return False if this pull has nothing more to
        bring.
        """
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
                pull.given_from = span.position
            whole = span.position == at and end == pull.position
            self.buffer[span.position : end] = (
                chunk if whole else chunk[span.position - at : end - at]
            )
            span.position = pull.given_to = end
        return span.rest > 0

    def release(self, pull: Pull) -> None:
        """Note what a pull brought and put what nobody is bringing back."""
        del self.active[pull.holder]
        if pull.led:
            self.origin.append((pull.holder, pull.given_from, pull.given_to))
        if pull.span.rest and not self._on(pull.span):
            self.todo.appendleft(pull.span)
        self.stir()

    def stir(self) -> None:
        """Wake idle workers."""
        self.changed.set()
        self.changed = asyncio.Event()
