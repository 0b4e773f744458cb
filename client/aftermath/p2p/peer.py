"""One member's slot in the table of connections, and when to dial it again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import iroh
from blake3 import blake3

from aftermath.base.rate_limit import doubled
from aftermath.p2p.limits import Quota
from aftermath.p2p.link import Link

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0
SHORTEST_PAUSE_S = 0.1


@dataclass(eq=False)
class Peer:
    """State of one peer.

    `quota`: rate limits over all its connections. `greeting`: a connection being greeted. `stir`:
    set by a caller that needs the peer now. `trouble`: why it is not connected.
    """

    quota: Quota
    link: Link | None = None
    greeting: iroh.Connection | None = None
    up: asyncio.Event = field(default_factory=asyncio.Event)
    stir: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = "it has not answered a dial yet"
    keeper: asyncio.Task[None] | None = None

    async def pause(self, delay_s: float) -> None:
        """Wait before a dial: `delay_s`, or SHORTEST_PAUSE_S if a caller needs the peer now."""
        await asyncio.sleep(min(SHORTEST_PAUSE_S, delay_s))
        if self.link is None and not self.stir.is_set():
            try:
                async with asyncio.timeout(max(0.0, delay_s - SHORTEST_PAUSE_S)):
                    await self.stir.wait()
            except TimeoutError:
                pass
        self.stir.clear()


def backoff(me: bytes, peer: bytes, attempt: int) -> float:
    """Return the seconds before dial number `attempt`: doubling, times 0.5 to 1.5.

    The jitter is a hash of pair and attempt. So a run that comes back does not dial in step, and
    tests are repeatable.
    """
    digest = blake3(me + peer + attempt.to_bytes(8, "big")).digest(4)
    jitter = 0.5 + int.from_bytes(digest, "big") / 2**32
    return doubled(attempt, FIRST_PAUSE_S, LONGEST_PAUSE_S) * jitter
