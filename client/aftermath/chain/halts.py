"""Whether a run is such as nobody takes part in: paused, finished, or one whose members convict others and nobody can
check that. The word of one node among several is not enough.

Decided: who believes it falsely ends, or gives up its place; who doubts it falsely loses nothing, since in such a run
there is nothing to do, and the change that ends a halt is believed. So one node that denies it is enough, if it goes
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
        """Raises BadReply for a node that says now what has been denied."""
        if _is_news(known, answered) and self._denied_until > asyncio.get_running_loop().time():
            raise BadReply("the RPC node says that nobody takes part in the run any more, and another that it goes on")

    async def believed(self, known: Run | None, answered: Run) -> bool:
        """Whether what a node answered can be so; other nodes are asked if nobody would take part in the run now."""
        if not _is_news(known, answered) or len(self._pool.endpoints) == 1:
            return True
        now = asyncio.get_running_loop().time
        async with self._asking:
            asked = (self._denies(node, known, answered) for node in self._pool.each())
            if self._denied_until <= now() and any(await asyncio.gather(*asked)):
                self._denied_until = now() + DENIED_SECONDS
            return self._denied_until <= now()

    async def _denies(self, node: RpcPool, known: Run | None, answered: Run) -> bool:
        now = asyncio.get_running_loop().time
        ends, first = now() + LAG_SECONDS, None
        while True:
            try:
                word = await self._word(node)
            except CoordinatorError:
                return False
            if word.run is None or not _contradicts(known, answered, word.run):
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
    return _halts(known, answered) or _convicts(known, answered)


def _halts(known: Run | None, answered: Run) -> bool:
    return answered.halted and (known is None or known.state is not answered.state)


def _convicts(known: Run | None, answered: Run) -> bool:
    return bool(answered.config.verification_percent) and (known is None or not known.config.verification_percent)


def _contradicts(known: Run | None, answered: Run, other: Run) -> bool:
    """Whether what another node says denies what is news in an answer. That a run is paused denies that it is finished:
    whoever waits there would end.
    """
    if _convicts(known, answered) and not other.config.verification_percent:
        return True
    goes_on = other.state is not RunState.FINISHED if answered.state is RunState.FINISHED else not other.halted
    return _halts(known, answered) and goes_on
