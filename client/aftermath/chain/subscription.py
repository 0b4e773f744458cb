"""Follows one Run account: websocket pushes first, polling whenever they are silent, the newest state by `seq`.

Decided: after each subscription the account is also fetched, not older than what is known (minContextSlot), so
nothing falls between the two; a state is accepted only if it is of this run and its `seq` is higher than the last one,
whichever way it came; two polls in a row that bring news the socket did not push mean the socket is mute, and it is
replaced (on the next endpoint). A push that brings no news is none. A websocket is believed for little (`pushes`): of
most of what it says only nodes' answers are. It is so for some changes beyond what they have answered, since a state of
a far higher `seq` would stay for ever, whoever made it up; and what nodes, asked for it again and again, do not confirm
is taken back, whoever told it, since the run may wait for this very member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from solders.pubkey import Pubkey

from aftermath.base.errors import AftermathError
from aftermath.base.wait import cancel
from aftermath.chain.accounts import AccountData, Doubt, fetch_many
from aftermath.chain.addresses import CLOCK
from aftermath.chain.clock import ChainClock, sysvar_time
from aftermath.chain.endpoints import describe
from aftermath.chain.failures import BadReply
from aftermath.chain.halts import Halts
from aftermath.chain.outages import Outages
from aftermath.chain.pushes import is_believed
from aftermath.chain.rpc import RpcPool
from aftermath.chain.socket import AccountSocket, Push
from aftermath.chain.views import parse_run
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun, Unavailable
from aftermath.rules.run import Run

log = logging.getLogger(__name__)

T = TypeVar("T")

SILENCE_SECONDS = 2.0
OUTAGE_SECONDS = 4.0  # without a sign of the run: more than a poll and its answer ever take on a node that works
OUTAGE_LOOK = 0.5  # the least time between two looks for one
SUBSCRIBE_SECONDS = 1.0
POLL_PATIENCE = 10.0
TOLD_PATIENCE = 4.0  # for nodes that are as far as a websocket says it is
STILL_SECONDS = 10.0  # in which the time that nodes answer has not changed: the one that answers is behind
GONE_SECONDS = 30.0  # in which no node has known the run: those that do not answer are not waited for
BEHIND_SECONDS = 20.0  # for which nodes answer older states than one of them has: longer than any but a broken one lags
POLL_PAUSE = 0.25  # after a poll that a push was the cause of and that brought no news, whatever a websocket sends
MUTE_AFTER, CONTRADICTED_AFTER = 2, 3
LEAD = 64
"""Changes of the run by which pushes may be ahead of what nodes answered; from half of them on nodes are asked."""
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
        self.retractions = 0
        """How often what websockets alone had told was taken back."""
        self._unheard = False
        """Whether what the present websocket pushes is nothing: it is being left."""
        self._unpushed = 0
        self._contradicted: list[float] = []
        """When, one after the other, answers were older than what was believed before."""
        self._answered: Run | None = None
        """The newest state that came as an answer."""
        self._said: Run | None = None
        """The one that came last."""
        self._pushes = 0
        """Those that brought a newer state."""
        self._told = self._pushed_slot = 0
        """The highest `seq` of what was pushed and not believed, and the slot of the newest that was pushed at all:
        nodes have to say so, and first those that are as far.
        """
        self._pushed_by = 0
        """Whose websocket pushed that last: the number of an endpoint."""
        self._troubles, self._silences, self._contradictions = Outages(), Outages(), Outages()
        """Of reading what comes; of websockets that push no news; of those that nodes contradict."""
        self.slot = 0
        """Of the newest state that nodes answered. What a websocket says of slots has only polls wait for nodes."""
        self.clock = ChainClock(lambda: asyncio.get_running_loop().time())
        self._time, self._time_since = 0, float("inf")
        """The latest time that nodes have answered, and since when."""
        self._gone_since: float | None = None
        """Since when all that answered knew no such run."""
        self._halts = Halts(pool, address, self.parsed)

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
        self._spawn(self._tell_outages())

    async def close(self) -> None:
        """Stop following."""
        await cancel(self._tasks)
        self._tasks.clear()

    async def refresh(self, patience: float | None = None, min_slot: int = 0, *, of: RpcPool | None = None) -> Run:
        """Read the run now (and chain time with it), not older than `min_slot` or anything seen before.

        `of`: the nodes to read it of, if not all.
        """
        while True:
            slot, account = await self._fetched(of, max(self.slot, min_slot) or None, patience)
            if account is None or not self._is_here(account):
                if self._latest is not None:
                    raise run_closed()
                raise NoSuchRun(
                    "there is no such run on this cluster (never created, or closed)",
                    "Check the run id, --rpc and the program id: aftermath-solana list-runs",
                )
            if await self.believed(self.parsed(account.data)):
                self.saw(slot, account)
                return self.latest

    async def as_known(self, ask: Callable[[int | None, float], Awaitable[T]], patience: float) -> T:
        """What `ask(slot, seconds)` finds as of the newest slot that nodes have answered. If none is as far for some
        seconds, whoever said so may have lied: then as of any, for the caller to see that it is new enough.

        Raises Unavailable after `patience` seconds.
        """
        now = asyncio.get_running_loop().time
        ends, slot = now() + patience, self.slot
        if slot:
            try:
                return await ask(slot, min(patience, POLL_PATIENCE))
            except Unavailable:
                self.slot = 0 if self.slot == slot else self.slot
                if patience <= POLL_PATIENCE:
                    raise
        return await ask(None, ends - now())

    async def _fetched(
        self, of: RpcPool | None, min_slot: int | None, patience: float | None
    ) -> tuple[int, AccountData | None]:
        gone, still = Doubt(self._pool), Doubt(self._pool)

        def legible(accounts: list[AccountData | None]) -> None:
            account, clock = accounts
            if account is not None and self._is_here(account):
                self.parsed_answer(account.data)
                self._gone_since = None
            elif of is not None:
                raise BadReply("the RPC node does not know the run")
            elif self._latest is not None:
                now = asyncio.get_running_loop().time()
                self._gone_since = self._gone_since or now
                if now - self._gone_since < GONE_SECONDS:  # later it is not asked again: some may be out of reach
                    gone.absent()
            if clock is not None:
                self._observe(sysvar_time(clock.data), still)

        try:
            slot, (account, _) = await fetch_many(
                of or self._pool, [self._address, CLOCK], min_slot=min_slot, patience=patience, legible=legible
            )
        except Unavailable:
            self.slot = 0  # no node is that far: who said so may have lied, and `seq` keeps out what is older
            raise
        return slot, account

    def _observe(self, time: int, still: Doubt) -> None:
        """Take in the cluster's time. Raises BadReply of a node where it stands still, unless it does everywhere."""
        now = asyncio.get_running_loop().time()
        if time > self._time:
            self._time, self._time_since = time, now
        elif now - self._time_since > STILL_SECONDS and len(self._pool.endpoints) > 1:
            still.said("is behind: its cluster's time stands still")
            self._time, self._time_since = time, now
        self.clock.observe(time)

    def parsed_answer(self, data: bytes) -> Run:
        """This run as a node answers it. Raises as `parsed`, and BadReply when other nodes have denied it."""
        run = self.parsed(data)
        self._halts.check(self._latest, run)
        return run

    async def believed(self, run: Run) -> bool:
        """Whether what a node answered may be so; asks the others first if nobody would take part in it."""
        return await self._halts.believed(self._latest, run)

    def parsed(self, data: bytes) -> Run:
        """This run as of an account's data. Raises AccountError, and BadReply for another run's."""
        run = parse_run(data)
        if self._latest is not None:
            ours = run.run_id == self._latest.run_id
        else:  # not by `run_addresses`, which remembers what it is asked
            seeds = [b"run", run.run_id.encode()]
            ours = Pubkey.find_program_address(seeds, self._program)[0] == self._address
        if not ours:
            raise BadReply("the RPC node sent another run")
        return run

    def _is_here(self, account: AccountData) -> bool:
        """Whether the run is still in its account. One that was closed and created again is another run, perhaps of
        another owner, whose members never agreed to it. Raises as `parsed`.
        """
        if account.owner != self._program:
            return False
        if self._latest is None:
            return True
        run, known = self.parsed(account.data), self._latest
        return (run.created, run.main_authority) == (known.created, known.main_authority)

    async def updates(self) -> AsyncIterator[Run]:
        """The newest state at once, then after every change; states that a slow reader missed are skipped. One that is
        older follows only where what was told is taken back.

        Raises NoSuchRun when the run was closed, Unavailable when the chain stayed out of reach.
        """
        seen: Run | None = None
        while True:
            changed = self._changed
            if self.latest is not seen:
                seen = self.latest
                yield seen
            elif self._ended is not None:
                raise self._ended
            else:
                await changed.wait()

    async def _poll(self) -> None:
        while True:
            heard = self._pushes
            with suppress(TimeoutError):
                async with asyncio.timeout(self._silence):
                    await self._poll_now.wait()
            pushed = self._poll_now.is_set()
            if not pushed and self._pushes != heard:
                continue
            self._poll_now.clear()
            known = self.latest.seq
            await self._poll_once()
            if pushed and self.latest.seq == known:
                await asyncio.sleep(POLL_PAUSE)

    async def _tell_outages(self) -> None:
        """Have every outage of the run's nodes told before five seconds of it are over."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + max(OUTAGE_SECONDS - self.silent, OUTAGE_LOOK)
            await asyncio.sleep(due - now())
            # where this process itself stood still, the nodes may have answered meanwhile
            if self.silent > OUTAGE_SECONDS and now() - due < OUTAGE_LOOK:
                self._pool.tell_silent(OUTAGE_SECONDS)

    async def _poll_once(self) -> None:
        pushes, seq, told, now = self._pushes, self.latest.seq, self._told, asyncio.get_running_loop().time
        answered = -1 if self._answered is None else self._answered.seq
        # a slot of a fallback's websocket would keep the first node from answering, and have the fallback asked
        slot = self._pushed_slot if max(seq, told) > answered and not self._pushed_by else 0
        # who answers an older state than is pushed is not asked twice in a row; whose websocket it is or was, only if
        # first
        first, *others = self._pool.each()
        itself = (self._socket.number, self._pushed_by)
        each = [first, *(node for number, node in enumerate(others, 1) if number not in itself)]
        of = each[len(self._contradicted) % len(each)] if self._contradicted else None
        try:
            await self.refresh(patience=TOLD_PATIENCE if slot else POLL_PATIENCE, min_slot=slot, of=of)
        except Unavailable as error:
            if slot:
                self._pushed_slot = 0
                self._poll_now.set()
            elif now() - self._contact > self._give_up:
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
        assert self._said is not None
        self._contradicted = [*self._contradicted, now()] if self._said.seq < max(seq, told) else []
        lasts = OUTAGE_SECONDS if max(seq, told) > answered else BEHIND_SECONDS
        if len(self._contradicted) >= CONTRADICTED_AFTER and now() - self._contradicted[0] >= lasts:
            await self._retract(self._said)
            return
        if not self._contradicted:
            self._contradictions.ends()
        elif told > seq:
            self._poll_now.set()  # the node that answered is behind the websocket's, or the push was made up
        missed = self.latest.seq > max(seq, told) and self._pushes == pushes and self._socket.ready.is_set()
        self._unpushed = self._unpushed + 1 if missed else self._unpushed
        if self._unpushed >= MUTE_AFTER:
            if (also := self._silences.lasts(now())) is not None:
                log.warning("the websocket says nothing new although the run changes%s: connecting anew", also)
            self._unpushed = 0
            await self._socket.drop()

    async def _retract(self, answered: Run) -> None:
        """Go back to what nodes answer, and listen to another websocket."""
        if (also := self._contradictions.lasts(asyncio.get_running_loop().time())) is not None:
            log.warning(
                "nodes go on answering an older state of the run than a websocket or a node told%s: going by what they "
                "answer, and connecting anew",
                also,
            )
        if self.latest.seq > answered.seq:
            self._latest = self._answered = answered
            self.slot = 0
            self.retractions += 1
            self._wake()
        self._contradicted, self._told, self._pushed_slot = [], 0, 0
        self._unheard = True
        await self._socket.drop()

    async def retracted(self, retractions: int) -> None:
        """Return once what was told is taken back more often than so."""
        while self.retractions <= retractions:
            await self._changed.wait()

    def _subscribed(self) -> None:
        """After a new subscription read the account, so that nothing between two subscriptions is missed."""
        self._unheard = False
        if self._latest is not None:
            self._poll_now.set()

    def _pushed(self, push: Push) -> None:
        if self._unheard:
            return
        try:
            if push.account is None or not self._is_here(push.account):
                self._poll_now.set()
                return
            run = self.parsed(push.account.data)
            answered = 0 if self._answered is None else self._answered.seq
            if run.seq > answered + LEAD // 2:
                self._poll_now.set()
            if self._latest is None or not self._latest.seq < run.seq <= answered + LEAD:
                return
            self._unpushed = 0
            if not is_believed(self._latest, run):
                if run.seq > self._told:
                    self._told, self._pushed_slot, self._pushed_by = run.seq, push.slot, self._socket.number
                self._poll_now.set()
                return
            self._silences.ends()
            self._pushes += 1
            self._pushed_slot, self._pushed_by = push.slot, self._socket.number
            self._take(run)
        except Exception as error:
            self._unreadable("a websocket", error)
            self._poll_now.set()

    def _unreadable(self, who: str, error: Exception) -> None:
        """Say it when it begins, and now and then as long as it comes again."""
        why = error.message if isinstance(error, AftermathError) else describe(error)
        if (also := self._troubles.lasts(asyncio.get_running_loop().time())) is not None:
            log.warning("%s sent a run that cannot be read: %s%s", who, why, also)

    def saw(self, slot: int, account: AccountData) -> None:
        """Take a state in that a node answered, if it is newer than the last one, and wake the readers."""
        run = self._said = self.parsed(account.data)
        if self._answered is None or run.seq > self._answered.seq:
            self._answered, self.slot = run, max(self.slot, slot)
        self._take(run)

    def _take(self, run: Run) -> None:
        self._troubles.ends()
        before, now = self._latest, asyncio.get_running_loop().time()
        if before is not None and now - self._contact > OUTAGE_SECONDS:
            self.back = now
        self._contact = now
        if before is not None and run.seq <= before.seq:
            return
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
