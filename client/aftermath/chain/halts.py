"""Whether a run has halted (it is paused, or finished), of which the word of one node among several is not enough.

Decided: who believes it falsely ends, or gives up its place; who doubts it falsely loses nothing, since in a halted run
there is nothing to do, and the change that ends the halt is believed. So one node that denies it is enough, if it goes
on denying for longer than honest ones lag behind each other, while the clock that it knows goes on: one that stands
still knows of nothing later, and one that takes three seconds to answer knows it all the same. That a run is paused
denies that it is finished: who waits in it would end. Whoever says what was denied is not believed, and not asked again
for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from solders.pubkey import Pubkey

from aftermath.chain.accounts import AccountData, fetch_many
from aftermath.chain.addresses import CLOCK
from aftermath.chain.clock import sysvar_time
from aftermath.chain.failures import BadReply
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import CoordinatorError
from aftermath.rules.run import Run
from aftermath.rules.state import RunState

LAG_SECONDS = 4.0
DENIED_SECONDS = 30.0
_ASK_AGAIN = 0.5


@dataclass(frozen=True)
class _Word:
    """What a node says: the run, unless it knows none, and the time of the cluster."""

    run: Run | None
    time: int


class Halts:
    """Of the run at `address`, whose account `read` understands (raising AccountError or BadReply)."""

    def __init__(self, pool: RpcPool, address: Pubkey, read: Callable[[bytes], Run]) -> None:
        self._pool, self._address, self._read = pool, address, read
        self._denied_until = float("-inf")
        self._asking = asyncio.Lock()

    def check(self, known: Run | None, answered: Run) -> None:
        """Raises BadReply for a node that says now that the run has halted, and has been denied."""
        if _is_news(known, answered) and self._denied_until > asyncio.get_running_loop().time():
            raise BadReply("the RPC node says that the run has halted, and another that it goes on")

    async def believed(self, known: Run | None, answered: Run) -> bool:
        """Whether what a node answered can be so; other nodes are asked if it is that the run has halted now."""
        if not _is_news(known, answered) or len(self._pool.endpoints) == 1:
            return True
        now = asyncio.get_running_loop().time
        async with self._asking:
            asked = (self._denies(node, answered.state) for node in self._pool.each())
            if self._denied_until <= now() and any(await asyncio.gather(*asked)):
                self._denied_until = now() + DENIED_SECONDS
            return self._denied_until <= now()

    async def _denies(self, node: RpcPool, state: RunState) -> bool:
        """Of a finished run also that it is paused: whoever waits there would end."""
        now = asyncio.get_running_loop().time
        ends, first = now() + LAG_SECONDS, None
        while True:
            try:
                word = await self._word(node)
            except CoordinatorError:
                return False
            if word.run is None or word.run.state is RunState.FINISHED:
                return False
            if word.run.halted and state is not RunState.FINISHED:
                return False
            if first is None:
                first = word.time
            elif now() >= ends:
                return word.time > first
            await asyncio.sleep(_ASK_AGAIN)

    async def _word(self, node: RpcPool) -> _Word:
        said: list[_Word] = []

        def legible(accounts: list[AccountData | None]) -> None:
            account, clock = accounts
            if clock is None:
                raise BadReply("the RPC node does not know the cluster's time")
            said[:] = [_Word(None if account is None else self._read(account.data), sysvar_time(clock.data))]

        await fetch_many(node, [self._address, CLOCK], patience=2 * LAG_SECONDS, legible=legible)
        return said[0]


def _is_news(known: Run | None, answered: Run) -> bool:
    return answered.halted and (known is None or known.state is not answered.state)
