"""One run as it is observed: followed on chain, retold from events, remembered, and sent to
visitors.

Decided
- What is sent is made once and shared by all who look. It has two parts: `now`, which changes with
  the run, and `curves`, which only new figures do.
- Where the chain does not answer, the last that it said stays, with how long ago that was;
  following continues by itself.
- Times are counted from when something is sent, so that no page depends on whose clock is right.
- The past is the chain's since this process follows the run, and before that, or while the chain is
  silent, the events'.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from solders.pubkey import Pubkey

from aftermath.base.concurrency import Pulse, cancel
from aftermath.base.errors import AftermathError
from aftermath.chain.addresses import run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.newest_run import OUTAGE_SECONDS
from aftermath.chain.transactions import RunTransactions, Transaction
from aftermath.coordinator.errors import NoSuchRun
from aftermath.events.reader import EventRecord, RunName
from aftermath.rules.run import Run
from aftermath.ui.web.follower import RunFollower
from aftermath.ui.web.from_events import MOST_EPOCHS, Points
from aftermath.ui.web.run_history import Past, RunRecords
from aftermath.ui.web.snapshot import Figures, Moment, moment_of

log = logging.getLogger(__name__)

AGAIN_SECONDS = 3.0
"""After a failure, and between two looks for transactions."""
_LOOK_SECONDS = 0.5  # between two looks at whether the chain still answers
_AT_ONCE, _PAUSE_SECONDS = 20, 1.0  # transactions read in a row, and the pause after them
_MOST_SAID = 16  # warnings about other runs of the same id
_FRESH_SECONDS, _TELL_SECONDS = 1.0, 5.0  # how old may be what is sent; how often viewers hear, though nothing happens


class Costs(msgspec.Struct, frozen=True):
    """Of the transactions that named the run, as far as they were read; `complete`: all of them
    were.
    """

    transactions: int
    lamports: int
    complete: bool


class Now(msgspec.Struct, frozen=True):
    """What a page shows of a run. `silent`: for how many seconds the chain has not answered, if it
    does not.
    """

    moment: Moment | None
    trouble: str
    silent: int | None
    costs: Costs
    events: int


class Curves(msgspec.Struct, frozen=True):
    """What a page draws of a run: by tier, and where epochs began and members went."""

    loss: dict[int, Points]
    sent: dict[int, Points]
    epochs: dict[int, int]
    marks: list[tuple[int, str]]


class ObservedRun:
    """`follow` is to run as a task; readers wait for `changed`. `steady`: it is followed whether it
    is there or not.
    """

    def __init__(self, coordinator: CoordinatorClient, run_id: str, *, steady: bool = False) -> None:
        self.run_id, self._steady = run_id, steady
        self.changed = Pulse()
        self.asked = asyncio.Event()
        """Set once the chain has answered for the first time, or a node has failed to."""
        self.missing = False
        """Whether the chain has answered that there is no such run."""
        self.viewers = 0
        self.looked_at = time.monotonic()
        self._coordinator = coordinator
        self._records = RunRecords(run_id)
        self._said: set[RunName] = set()
        """The runs of the same id that a person was told of."""
        self._follower: RunFollower | None = None
        self._trouble = ""
        self._silent = False
        self._tiers: dict[str, int] = {}
        run = run_addresses(coordinator.program_id, run_id).run
        self._reader = RunTransactions(coordinator.pool, run, coordinator.program_id)
        self._curves: bytes | None = None
        self._now: bytes | None = None
        self._made = 0.0

    # --- what is known ----------------------------------------------------------------------------

    def now(self) -> bytes:
        """`Now` as JSON."""
        if self._now is None or time.monotonic() - self._made > _FRESH_SECONDS:
            follower, silent = self._follower, None
            record = self._records.shown
            if follower is not None:
                record.moment = self._chain_moment(follower)
                silent = round(follower.silent) if self._silent else None
            costs = Costs(record.transactions, record.lamports, self._reader.complete)
            told = Now(record.moment, self._trouble, silent, costs, record.retold.told)
            self._now, self._made = msgspec.json.encode(told), time.monotonic()
        return self._now

    def curves(self) -> bytes:
        """`Curves` as JSON; the same object until there is something new."""
        if self._curves is None:
            record = self._records.shown
            retold = record.retold
            drawn = Curves(
                record.losses.by_tier(), retold.sent.by_tier(), {**record.epochs, **retold.epochs}, retold.marks
            )
            self._curves = msgspec.json.encode(drawn)
        return self._curves

    @property
    def known(self) -> bool:
        """Whether there is anything to show of the run: the chain has it, or events have told of it."""
        return self._follower is not None or self._records.shown.moment is not None or self.told > 0

    @property
    def told(self) -> int:
        """How many events have told of runs of this id."""
        return sum(record.retold.told for record in self._records)

    @property
    def past(self) -> Past:
        """The moments that are remembered of the run that is shown."""
        return self._records.shown.past

    # --- events -----------------------------------------------------------------------------------

    def take(self, told: EventRecord) -> None:
        """Learn from an event, which may be of an earlier run of this id."""
        run = RunName.of(told.about)
        before = self._records.shown
        record = self._records.told(run)
        if self._records.shown is not before:
            self._curves = None
        if record is None:
            return
        moment = record.retold.take(told)
        if record is self._records.shown:
            self._curves = None
        elif run.identity:
            self._say_other(run)
        if moment is None:
            return
        if record.live_since is None or moment.at < record.live_since or self._silent:
            record.past.keep(moment)
        if record.live_since is None:
            record.moment = moment

    def _say_other(self, run: RunName) -> None:
        """Say once that there are events of a run that is not shown."""
        if run not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(run)
            log.warning("events of another run are not shown: %s", run)

    def taken(self) -> None:
        """Some events were taken: tell it."""
        self._tell()

    # --- the chain --------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Follow the run until cancelled, whatever happens to nodes and to the run; one that the
        chain has never shown only while a visitor looks.
        """
        while True:
            try:
                await self._follow()
            except AftermathError as error:
                self._trouble = error.message
                self.missing = isinstance(error, NoSuchRun)
            except Exception:
                log.exception("run %s could not be followed", self.run_id)
                self._trouble = "something unexpected went wrong while it was followed: the server's log says what"
            self._follower, self._silent = None, self._records.shown.live_since is not None
            self.asked.set()
            self._tell()
            await asyncio.sleep(AGAIN_SECONDS)
            if self._records.shown.live_since is None and not self._steady and not self.viewers:
                return

    async def _follow(self) -> None:
        follower = RunFollower(self._coordinator, self.run_id)
        async with follower.following() as standings:
            self._show(follower.run)
            self._follower, self._trouble, self.missing = follower, "", False
            self.asked.set()
            tasks = [asyncio.create_task(self._mind(follower)), asyncio.create_task(self._read_transactions(follower))]
            try:
                async for _ in standings:
                    self._see(follower)
            finally:
                await cancel(tasks)

    def _see(self, follower: RunFollower) -> None:
        """Take in where the run stands now."""
        self._show(follower.run)
        found = self._chain_moment(follower)
        record = self._records.shown
        record.moment = found
        record.live_since = record.live_since or found.at
        self._tiers = {member.wallet: member.tier for member in found.members}
        record.past.keep(found)
        self._silent = False
        self._tell()

    def _show(self, run: Run) -> None:
        """Show the run that is on chain, which may have been closed and created again."""
        owner = str(Pubkey.from_bytes(run.main_authority))
        before = self._records.shown
        self._records.show(RunName(run.run_id, owner, run.created, run.identity))
        if self._records.shown is not before:
            self._curves = None
            if before.run.identity and before.retold.told:
                self._say_other(before.run)

    def _chain_moment(self, follower: RunFollower) -> Moment:
        record = self._records.shown
        figures = {**record.stated, **{wallet: member.figures for wallet, member in record.retold.members.items()}}
        return moment_of(follower.standing(), round(time.time() * 1000), figures)

    async def _mind(self, follower: RunFollower) -> None:
        """Say when the chain falls silent, and when it answers again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            silent = follower.silent > OUTAGE_SECONDS
            if silent != self._silent:
                self._silent = silent
                if silent:
                    self._tell()
                else:
                    self._see(follower)
            elif self.viewers and time.monotonic() - self._made > _TELL_SECONDS:
                self._tell()

    # --- transactions -----------------------------------------------------------------------------

    async def _read_transactions(self, follower: RunFollower) -> None:
        pause = 0.0 if self._coordinator.pool.is_local else _PAUSE_SECONDS
        while True:
            try:
                found = await self._reader.read(_AT_ONCE)
            except AftermathError as error:
                log.info("transactions of run %s: %s", self.run_id, error.message)
                found = []
            for transaction in found:
                self._count(transaction, follower.newest_step)
            if found:
                self._tell()
            await asyncio.sleep(pause if len(found) == _AT_ONCE else AGAIN_SECONDS)

    def _count(self, transaction: Transaction, newest_step: int) -> None:
        record = self._records.shown
        if transaction.slot < record.run.created:
            return  # of an earlier run at the same address
        record.transactions += 1
        record.lamports += transaction.fee
        wallet = str(transaction.payer)
        for stated in transaction.stated:
            if stated.step > newest_step:
                continue  # nobody has been there, and of a chart such a point would be all that is seen
            record.epochs[stated.epoch] = min(stated.step, record.epochs.get(stated.epoch, stated.step))
            if len(record.epochs) > MOST_EPOCHS:
                del record.epochs[min(record.epochs)]
            tier = self._tiers.get(wallet)
            if tier is None:  # it has left, or its loss was stated before it had one
                continue
            if wallet not in record.stated or stated.step >= record.stated[wallet].step:
                speed = float(stated.tokens_per_second)
                record.stated[wallet] = Figures(
                    stated.step, stated.loss, speed, bytes_per_second=stated.bytes_per_second
                )
            if stated.loss is not None:
                record.losses.stated(tier, stated.step, stated.loss)
                self._curves = None

    def _tell(self) -> None:
        self._now = None
        self.changed.fire()
