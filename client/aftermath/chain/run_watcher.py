"""Follow one Run account by websocket pushes, and poll it while they are silent.

After each subscription the account is also polled, at the newest known slot or later
(minContextSlot), so nothing falls between the two. After two polls in a row with news that the
websocket did not push, it reconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

from solders.pubkey import Pubkey

from aftermath.base.concurrency import cancel
from aftermath.base.errors import AftermathError
from aftermath.chain.account_socket import AccountSocket
from aftermath.chain.clock import ChainClock
from aftermath.chain.endpoints import describe
from aftermath.chain.newest_run import OUTAGE_SECONDS, NewestRun, RunSource
from aftermath.chain.node_client import AccountData, NodeClient
from aftermath.chain.nodes import Outages
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import Unavailable
from aftermath.rules.run import Run

log = logging.getLogger(__name__)

SILENCE_SECONDS = 2.0
OUTAGE_LOOK = 0.5  # minimum seconds between two checks for an outage
SUBSCRIBE_SECONDS = 1.0
POLL_PATIENCE = 10.0
POLL_PAUSE = 0.25  # minimum seconds between two polls that pushes trigger
MUTE_AFTER = 2  # polls in a row
GIVE_UP_SECONDS = 600.0


class RunWatcher:
    """The newest state of one run.

    After `silence` seconds without a push it polls. After `give_up` seconds without any contact
    `updates` raises Unavailable.
    """

    def __init__(
        self,
        pool: RpcPool,
        address: Pubkey,
        program: Pubkey,
        *,
        silence: float = SILENCE_SECONDS,
        give_up: float = GIVE_UP_SECONDS,
    ) -> None:
        self.newest = NewestRun()
        self.source = RunSource(pool, address, program, self.newest)
        self._pool = pool
        self._silence = silence
        self._give_up = give_up
        self._poll_now = asyncio.Event()
        self._socket = AccountSocket(pool, address, self._pushed, self._poll_now.set)
        self._pushes = 0
        """Pushes that brought a newer state."""
        self._unpushed = 0
        """Polls in a row that brought a state which the websocket did not push."""
        self._unreadable = Outages()
        self._mute = Outages()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def latest(self) -> Run:
        """The newest state seen. Raises CoordinatorError before `start`."""
        return self.newest.run

    @property
    def clock(self) -> ChainClock:
        """The chain's time."""
        return self.newest.clock

    @property
    def silent(self) -> float:
        """Seconds since the run was last read or pushed; while the chain answers, no more than
        OUTAGE_SECONDS.
        """
        return self.newest.silent

    @property
    def push_bytes_max(self) -> int:
        """Size of the largest websocket notification in bytes."""
        return self._socket.bytes_max

    async def start(self) -> None:
        """Subscribe, read the run, and keep following it until `close`. Raises Unavailable,
        NoSuchRun.
        """
        self._spawn(self._socket.run())
        try:
            try:
                async with asyncio.timeout(SUBSCRIBE_SECONDS):
                    await self._socket.ready.wait()
            except TimeoutError:
                log.info("the websocket is not ready yet, reading the run by polling")
            self._poll_now.clear()
            await self.refresh()
        except BaseException:
            await self.close()
            raise
        self._spawn(self._poll())
        self._spawn(self._tell_outages())

    async def close(self) -> None:
        """Stop following."""
        await cancel(self._tasks)
        self._tasks.clear()

    def updates(self) -> AsyncIterator[Run]:
        """Yield the newest state at once, then after every change (see `NewestRun.updates`).

        Raises NoSuchRun when the run was closed, Unavailable when the chain stayed out of reach.
        """
        return self.newest.updates()

    async def refresh(self, patience: float | None = None, min_slot: int = 0) -> Run:
        """Read the run and chain time, at `min_slot` or later. Raises Unavailable, NoSuchRun."""

        async def ask(node: NodeClient) -> None:
            await self.source.read(node, min_slot=min_slot)

        try:
            await self._pool.call(ask, patience=patience)
        except Unavailable:
            # otherwise, after one forged high slot, all nodes would count as behind
            self.newest.slot = 0
            raise
        return self.latest

    def _pushed(self, account: AccountData) -> None:
        newest = self.newest.known
        if newest is None:
            return
        try:
            run = self.source.parsed(account.data) if self.source.is_here(account) else None
        except Exception as error:  # ignore this push; a malformed account must not end the member
            self._say_unreadable(error)
            self._poll_now.set()
            return
        self._unreadable.ends()
        if run is None or self.source.is_end(run) or self.source.jumps(run):
            self._poll_now.set()  # a poll must confirm it
        elif run.seq > newest.seq:
            self._pushes += 1
            self._unpushed = 0
            self._mute.ends()
            self.newest.take(run, account.slot)

    def _say_unreadable(self, error: Exception) -> None:
        reason = error.message if isinstance(error, AftermathError) else describe(error)
        if (repeat_note := self._unreadable.lasts(asyncio.get_running_loop().time())) is not None:
            log.warning("a websocket sent an unreadable run: %s%s", reason, repeat_note)

    async def _poll(self) -> None:
        while True:
            pushes = self._pushes
            with suppress(TimeoutError):
                async with asyncio.timeout(self._silence):
                    await self._poll_now.wait()
            is_asked = self._poll_now.is_set()
            if is_asked or self._pushes == pushes:
                self._poll_now.clear()
                await self._poll_once()
            if is_asked:
                await asyncio.sleep(POLL_PAUSE)

    async def _poll_once(self) -> None:
        pushes = self._pushes
        seq = self.latest.seq
        try:
            await self.refresh(POLL_PATIENCE)
        except Unavailable as error:
            if self.silent > self._give_up:
                self.newest.end(error)
            return
        if self.latest.seq > seq and self._pushes == pushes and self._socket.ready.is_set():
            self._unpushed += 1
        if self._unpushed >= MUTE_AFTER:
            if (repeat_note := self._mute.lasts(asyncio.get_running_loop().time())) is not None:
                log.warning(
                    "the websocket does not push changes of the run%s: connecting again",
                    repeat_note,
                )
            self._unpushed = 0
            await self._socket.drop()

    async def _tell_outages(self) -> None:
        """Report each outage of the run's nodes within five seconds, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            look_at = now() + max(OUTAGE_SECONDS - self.silent, OUTAGE_LOOK)
            await asyncio.sleep(look_at - now())
            # if this process stalled, the nodes may have answered in the meantime
            if self.silent > OUTAGE_SECONDS and now() - look_at < OUTAGE_LOOK:
                self._pool.tell_silent(OUTAGE_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._finished)
        self._tasks.append(task)

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.newest.end(error)
