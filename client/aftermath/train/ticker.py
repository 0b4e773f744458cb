"""Who ticks: every member watches the next deadline, and a seeded ranking says how long each waits before it tries.

Time here is chain time; the machine's own clock only measures waiting.
"""

from __future__ import annotations

import asyncio

from aftermath.run.accounts import Run
from aftermath.run.deadlines import next_deadline, tick_delay, tick_order
from aftermath.run.errors import ChainRefused, ChainUnavailable
from aftermath.train.feed import RunFeed
from aftermath.train.ports import Chain, Clock

_LOOK_AGAIN = 1.0  # seconds between looks at a deadline that has passed without effect


class Ticker:
    """Keeps the run's clock going from one member."""

    def __init__(self, chain: Chain, feed: RunFeed, clock: Clock) -> None:
        self._chain, self._feed, self._clock = chain, feed, clock

    async def run(self) -> None:
        """Tick whenever it is due and nobody before us did, for ever."""
        while True:
            run = self._feed.run
            due = await self._due(run)
            if due is None:
                await self._feed.after(run.seq)
                continue
            moved = await self._wait(run, due - self._chain.now())
            if not moved:
                await self._tick()

    async def _due(self, run: Run) -> float | None:
        """Chain time at which this member should tick `run`, or None if no clock runs."""
        try:
            members = await self._chain.members()
        except ChainUnavailable:
            return self._chain.now() + _LOOK_AGAIN
        deadline = next_deadline(run, members)
        if deadline is None:
            return None
        order = tick_order(run, members)
        slot = members.find(self._chain.wallet)
        rank = order.index(slot) if slot in order else len(order)
        return deadline + tick_delay(rank)

    async def _wait(self, run: Run, seconds: float) -> bool:
        """Wait, but at most until the run changes; True if it did."""
        changed = asyncio.ensure_future(self._feed.after(run.seq))
        timer = asyncio.ensure_future(self._clock.sleep(max(seconds, 0.05)))
        try:
            await asyncio.wait({changed, timer}, return_when=asyncio.FIRST_COMPLETED)
            return changed.done()
        finally:
            changed.cancel()
            timer.cancel()

    async def _tick(self) -> None:
        try:
            await self._chain.tick()
        except ChainRefused:
            await self._clock.sleep(_LOOK_AGAIN / 2)  # a little early, or somebody else ticked
        except ChainUnavailable:
            await self._clock.sleep(_LOOK_AGAIN)
