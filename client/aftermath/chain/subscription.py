"""Follows one Run account: websocket pushes first, polling whenever they are silent, the newest state by `seq`.

Decided: after each subscription the account is also fetched, not older than what is known (minContextSlot), so
nothing falls between the two; a state is accepted only if its `seq` is higher than the last one, whichever way it
came; two polls in a row that bring news the socket did not push mean the socket is mute, and it is replaced (on the
next endpoint).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from solders.pubkey import Pubkey

from aftermath.base.errors import AftermathError
from aftermath.base.wait import cancel
from aftermath.chain.accounts import Absence, AccountData, fetch_many
from aftermath.chain.addresses import CLOCK
from aftermath.chain.clock import ChainClock
from aftermath.chain.endpoints import describe
from aftermath.chain.failures import BadReply
from aftermath.chain.rpc import RpcPool
from aftermath.chain.socket import AccountSocket, Push
from aftermath.chain.views import parse_run
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun, Unavailable
from aftermath.rules.run import Run

log = logging.getLogger(__name__)

SILENCE_SECONDS = 2.0
OUTAGE_SECONDS = 4.0  # without a sign of the run: more than a poll and its answer ever take on a node that works
SUBSCRIBE_SECONDS = 1.0
POLL_PATIENCE = 10.0
MUTE_AFTER = 2
GIVE_UP_SECONDS = 600.0


def run_closed() -> NoSuchRun:
    """The error of a run that was there and is no more."""
    return NoSuchRun(
        "the run has been closed: its accounts are gone",
        "Its owner closed it, for good; aftermath-solana list-runs shows the runs that there are",
    )


class RunWatcher:
    """The newest state of one run. `give_up`: after so many seconds without any contact `updates` raises
    Unavailable.
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
        self._pool = pool
        self._address = address
        self._program = program
        self._silence = silence
        self._give_up = give_up
        self._latest: Run | None = None
        self._ended: BaseException | None = None
        self._changed = asyncio.Event()
        self._poll_now = asyncio.Event()
        self._socket = AccountSocket(pool, address, self._pushed, self._subscribed)
        self._tasks: list[asyncio.Task[None]] = []
        self._contact = 0.0
        self.back = float("-inf")
        """When, on the event loop's clock, the run was read again after an outage."""
        self._unpushed = 0
        self._said = ""
        self.slot = 0
        self.clock = ChainClock(lambda: asyncio.get_running_loop().time())

    @property
    def latest(self) -> Run:
        """The newest state seen. Raises CoordinatorError before `start`."""
        if self._latest is None:
            raise CoordinatorError("the run has not been read yet")
        return self._latest

    @property
    def silent(self) -> float:
        """Seconds since the run was last read or pushed; while the chain answers, no more than OUTAGE_SECONDS."""
        return asyncio.get_running_loop().time() - self._contact

    @property
    def push_bytes_max(self) -> int:
        """Bytes of the largest websocket message received."""
        return self._socket.bytes_max

    async def start(self) -> None:
        """Subscribe, read the run, and keep following it until `close`.

        Raises Unavailable, NoSuchRun, AccountError when it is of another version.
        """
        self._spawn(self._socket.run())
        try:
            try:
                async with asyncio.timeout(SUBSCRIBE_SECONDS):
                    await self._socket.ready.wait()
            except TimeoutError:
                log.info("the websocket is not ready yet, reading the run by polling")
            await self.refresh()
        except BaseException:
            await self.close()
            raise
        self._spawn(self._poll())

    async def close(self) -> None:
        """Stop following."""
        await cancel(self._tasks)
        self._tasks.clear()

    async def refresh(self, patience: float | None = None, min_slot: int = 0) -> Run:
        """Read the run now (and chain time with it), not older than `min_slot` or anything seen before."""
        oldest, absence = max(self.slot, min_slot) or None, Absence(self._pool)

        def legible(accounts: list[AccountData | None]) -> None:
            if self._latest is not None and (accounts[0] is None or accounts[0].owner != self._program):
                absence.reported()
            self._legible(accounts)

        try:
            slot, (account, _) = await fetch_many(
                self._pool, [self._address, CLOCK], min_slot=oldest, patience=patience, legible=legible
            )
        except Unavailable:
            self.slot = 0  # no node is that far: who said so may have lied, and `seq` keeps out what is older
            raise
        if account is None or account.owner != self._program:
            if self._latest is not None:
                raise run_closed()
            raise NoSuchRun(
                "there is no such run on this cluster (never created, or closed)",
                "Check the run id, --rpc and the program id: aftermath-solana list-runs",
            )
        self.saw(slot, account)
        return self.latest

    def _legible(self, accounts: list[AccountData | None]) -> None:
        """Take in the clock, and see that the run can be read."""
        account, clock = accounts
        if account is not None and account.owner == self._program:
            parse_run(account.data)
        if clock is not None:
            self.clock.observe_sysvar(clock.data)

    async def updates(self) -> AsyncIterator[Run]:
        """The newest state at once, then after every change; states that a slow reader missed are skipped.

        Raises NoSuchRun when the run was closed, Unavailable when the chain stayed out of reach.
        """
        seen = -1
        while True:
            changed = self._changed
            if self.latest.seq > seen:
                seen = self.latest.seq
                yield self.latest
            elif self._ended is not None:
                raise self._ended
            else:
                await changed.wait()

    async def _poll(self) -> None:
        while True:
            heard = self._heard()
            try:
                async with asyncio.timeout(self._silence):
                    await self._poll_now.wait()
            except TimeoutError:
                if self._heard() != heard:
                    continue
            self._poll_now.clear()
            await self._poll_once()

    async def _poll_once(self) -> None:
        pushes, seq = self._heard(), self.latest.seq
        try:
            await self.refresh(patience=POLL_PATIENCE)
        except Unavailable as error:
            if asyncio.get_running_loop().time() - self._contact > self._give_up:
                self._end(error)
            return
        except CoordinatorError as error:
            if not isinstance(error, BadReply):
                raise
            self._unreadable("an RPC node", error)
            return
        except Exception as error:  # whatever is wrong with an account costs this reading of it, not the member
            self._unreadable("an RPC node", error)
            return
        missed = self.latest.seq > seq and self._heard() == pushes and self._socket.ready.is_set()
        self._unpushed = self._unpushed + 1 if missed else self._unpushed
        if self._unpushed >= MUTE_AFTER:
            log.warning("the websocket is silent although the run changes: connecting anew")
            self._unpushed = 0
            await self._socket.drop()

    def _heard(self) -> int:
        return self._socket.pushes

    def _subscribed(self) -> None:
        """After a new subscription read the account, so that nothing between two subscriptions is missed."""
        if self._latest is not None:
            self._poll_now.set()

    def _pushed(self, push: Push) -> None:
        self._unpushed = 0
        try:
            if push.account is None or push.account.owner != self._program:
                self._poll_now.set()
                return
            self.saw(push.slot, push.account)
        except Exception as error:
            self._unreadable("a websocket", error)
            self._poll_now.set()

    def _unreadable(self, who: str, error: Exception) -> None:
        """Say it when it begins, or begins to be something else."""
        why = error.message if isinstance(error, AftermathError) else describe(error)
        if why != self._said:
            log.warning("%s sent a run that cannot be read: %s", who, why)
        self._said = why

    def saw(self, slot: int, account: AccountData) -> None:
        """Take a state in that was read, if it is newer than the last one, and wake the readers."""
        run = parse_run(account.data)
        self._said = ""
        before, now = self._latest, asyncio.get_running_loop().time()
        if before is not None and now - self._contact > OUTAGE_SECONDS:
            self.back = now
        self._contact = now
        if before is not None and run.seq <= before.seq:
            return
        self.slot = max(self.slot, slot)
        if before is not None and run.state_started_at > before.state_started_at:
            self.clock.observe(run.state_started_at)
        self._latest = run
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _end(self, error: BaseException) -> None:
        self._ended = error
        self._wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._finished)
        self._tasks.append(task)

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)
