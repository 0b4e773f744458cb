"""Simulate a bad line of one member, to test on one machine: latency, loss and bandwidth.

The transport calls the line before it sends and after it reads part of a blob. This shapes blobs,
requests, replies and announcements, but not QUIC's own packets, dials and relays.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aftermath.base.errors import UsageError

BYTES_PER_MBIT = 125_000
LEAST_MBIT = 0.5
"""Lowest bandwidth limit. With less, a piece of a blob takes longer than peers wait for it."""
_BANDWIDTH = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)/([0-9]{1,6}(?:\.[0-9]{1,3})?)")
PACKET = 1200
"""Bytes of data in a packet, for drawing losses."""
SHAPED_PIECE = 32768
"""Bytes to send or read at a time if the bandwidth is limited."""
LEAST_RESEND_S = 0.01


@dataclass(frozen=True)
class LineFaults:
    """The faults of one member's line. Rates are in bytes per second, None for no limit."""

    latency_s: float = 0.0
    """Delay of everything that this member sends. Two such members delay a round trip twice."""
    loss: float = 0.0
    """Fraction of packets of this member's streams to lose, from 0 to below 1."""
    up: float | None = None
    down: float | None = None
    seed: int = 0


def line_faults(
    *, latency_ms: int, loss_percent: float, bandwidth: str | None, seed: int
) -> LineFaults | None:
    """Return the faults that the options ask for, or None if all are off. Raises UsageError."""
    if not (latency_ms or loss_percent or bandwidth):
        return None
    up, down = bandwidth_of("--fault-bandwidth-limit", bandwidth)
    return LineFaults(latency_ms / 1000, loss_percent / 100, up, down, seed)


def bandwidth_of(option: str, text: str | None) -> tuple[float | None, float | None]:
    """Return the bytes per second of UP/DOWN in Mb/s, None without a limit. Raises UsageError."""
    if text is None:
        return None, None
    match = _BANDWIDTH.fullmatch(text)
    rates = [float(rate) for rate in match.groups()] if match else []
    if not rates or min(rates) < LEAST_MBIT:
        raise UsageError(
            f"{option} {text!r} is not UP/DOWN in Mb/s, each at least {LEAST_MBIT}",
            f"Pass for example {option} 20/100",
        )
    return rates[0] * BYTES_PER_MBIT, rates[1] * BYTES_PER_MBIT


class RateLimit:
    """Lets `rate` bytes per second pass, in the order in which they are asked for."""

    def __init__(self, rate: float | None, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._free_at = clock()

    def reserve(self, size: int) -> float:
        """Take the next free time for `size` bytes. Return the seconds until they have passed."""
        if self._rate is None:
            return 0.0
        now = self._clock()
        self._free_at = max(now, self._free_at) + size / self._rate
        return self._free_at - now


class MemberLine:
    """Delays what one member sends and reads. The seed and the member determine the losses.

    A lost packet of a stream is sent again after a round trip, and everything behind it on the
    stream waits. Congestion control, which would also send more slowly, is not modelled.
    """

    def __init__(
        self,
        faults: LineFaults,
        member: bytes,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._faults = faults
        self._sleep = sleep
        self._random = random.Random(faults.seed.to_bytes(8, "big") + member)
        self._up = RateLimit(faults.up, clock)
        self._down = RateLimit(faults.down, clock)

    def upload_piece(self, most: int) -> int:
        """Return how many bytes of a blob to send at a time, at most `most`."""
        return most if self._faults.up is None else min(most, SHAPED_PIECE)

    def download_piece(self, most: int) -> int:
        """Return how many bytes of a blob to read at a time, at most `most`."""
        return most if self._faults.down is None else min(most, SHAPED_PIECE)

    async def send(self, size: int) -> None:
        """Wait until the first byte of a message of `size` bytes may leave for the peer."""
        await self._wait(self._up.reserve(size) + self._faults.latency_s + self._resends_s(size))

    async def upload(self, size: int) -> None:
        """Wait until the next `size` bytes of a blob may leave. `send` has added the latency."""
        await self._wait(self._up.reserve(size) + self._resends_s(size))

    async def download(self, size: int) -> None:
        """Wait until `size` bytes of a blob have arrived."""
        await self._wait(self._down.reserve(size))

    async def _wait(self, seconds: float) -> None:
        if seconds > 0:
            await self._sleep(seconds)

    def _resends_s(self, size: int) -> float:
        """Draw losses. Return the seconds that resending the lost packets takes."""
        lost = -(-size // PACKET) if self._faults.loss else 0
        round_trips = 0
        while lost:
            lost = sum(self._random.random() < self._faults.loss for _ in range(lost))
            round_trips += lost > 0
        return round_trips * max(LEAST_RESEND_S, 2 * self._faults.latency_s)


GOOD_LINE = MemberLine(LineFaults(), b"")
"""A line without faults, which never waits."""
