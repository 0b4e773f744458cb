"""One observed run: follow it on chain, rebuild it from events, keep its history, and send it to
viewers.
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
from aftermath.ui.run_follower import RunFollower
from aftermath.ui.web.from_events import MOST_EPOCHS, Points
from aftermath.ui.web.run_history import RunRecords, SnapshotHistory
from aftermath.ui.web.snapshot import Figures, RunSnapshot, snapshot_of

log = logging.getLogger(__name__)

AGAIN_SECONDS = 3.0
"""Seconds to wait after a failure, and between two searches for transactions."""
_LOOK_SECONDS = 0.5  # seconds between two checks whether the chain still answers
# transactions read in a row, and the pause after them
_AT_ONCE = 20
_PAUSE_SECONDS = 1.0
_MOST_LOGGED = 16  # warnings about other runs of the same id
# maximum age of JSON that is sent, and seconds between messages when nothing changes
_FRESH_SECONDS = 1.0
_TELL_SECONDS = 5.0


class ObservedCosts(msgspec.Struct, frozen=True):
    """Costs of the transactions that named the run and were read. `complete`: all were read."""

    transactions: int
    lamports: int
    complete: bool


class Now(msgspec.Struct, frozen=True):
    """The current state of a run. `silent`: seconds without an answer from the chain, if it does
    not answer.
    """

    moment: RunSnapshot | None
    trouble: str
    silent: int | None
    costs: ObservedCosts
    events: int


class Curves(msgspec.Struct, frozen=True):
    """A run's curves by tier, the first steps of epochs, and marks."""

    loss: dict[int, Points]
    sent: dict[int, Points]
    epochs: dict[int, int]
    marks: list[tuple[int, str]]


class ObservedRun:
    """Run `follow` as a task; readers wait for `changed`. `steady`: follow the run even if it does
    not exist.

    All viewers share the same JSON. Times are relative to sending, so no page depends on a correct
    clock. While the chain does not answer, its last state is shown with its age. The history comes
    from the chain since this process started, and before that from events.
    """

    def __init__(
        self, coordinator: CoordinatorClient, run_id: str, *, steady: bool = False
    ) -> None:
        self.run_id = run_id
        self._steady = steady
        self.changed = Pulse()
        self.asked = asyncio.Event()
        """Set once the chain has answered for the first time, or a node has failed."""
        self.missing = False
        """Whether the chain has answered that there is no such run."""
        self.viewers = 0
        self.looked_at = time.monotonic()
        self._coordinator = coordinator
        self._records = RunRecords(run_id)
        self._logged: set[RunName] = set()
        """The runs of the same id that were logged."""
        self._follower: RunFollower | None = None
        self._trouble = ""
        self._silent = False
        self._tiers: dict[str, int] = {}
        run = run_addresses(coordinator.program_id, run_id).run
        self._reader = RunTransactions(coordinator.pool, run, coordinator.program_id)
        self._curves: bytes | None = None
        self._now: bytes | None = None
        self._made = 0.0

    # --- state ---

    def now(self) -> bytes:
        """Return `Now` as JSON."""
        if self._now is None or time.monotonic() - self._made > _FRESH_SECONDS:
            follower = self._follower
            silent = None
            record = self._records.shown
            if follower is not None:
                record.moment = self._chain_moment(follower)
                silent = round(follower.silent) if self._silent else None
            costs = ObservedCosts(record.transactions, record.lamports, self._reader.complete)
            newest = Now(
                record.moment, self._trouble, silent, costs, record.event_snapshots.event_count
            )
            self._now = msgspec.json.encode(newest)
            self._made = time.monotonic()
        return self._now

    def curves(self) -> bytes:
        """Return `Curves` as JSON, the same object until something changes."""
        if self._curves is None:
            record = self._records.shown
            event_snapshots = record.event_snapshots
            drawn = Curves(
                record.losses.by_tier(),
                event_snapshots.sent.by_tier(),
                {**record.epochs, **event_snapshots.epochs},
                event_snapshots.marks,
            )
            self._curves = msgspec.json.encode(drawn)
        return self._curves

    @property
    def known(self) -> bool:
        """Whether the chain or events gave anything to show."""
        return (
            self._follower is not None
            or self._records.shown.moment is not None
            or self.event_count > 0
        )

    @property
    def event_count(self) -> int:
        """Number of events of runs of this id."""
        return sum(record.event_snapshots.event_count for record in self._records)

    @property
    def past(self) -> SnapshotHistory:
        """The stored snapshots of the run that is shown."""
        return self._records.shown.past

    # --- events ---

    def take(self, event_record: EventRecord) -> None:
        """Add an event, which may be of an earlier run of this id."""
        run = RunName.of(event_record.origin)
        shown_before = self._records.shown
        record = self._records.record_for(run)
        if self._records.shown is not shown_before:
            self._curves = None
        if record is None:
            return
        moment = record.event_snapshots.take(event_record)
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
        """Log once that there are events of a run that is not shown."""
        if run not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(run)
            log.warning("events of another run are not shown: %s", run)

    def taken(self) -> None:
        """Notify viewers that events were added."""
        self._tell()

    # --- the chain ---

    async def follow(self) -> None:
        """Follow the run until cancelled, whatever happens to nodes and the run.

        A run that the chain has never shown is followed only while someone views it.
        """
        while True:
            try:
                await self._follow()
            except AftermathError as error:
                self._trouble = error.message
                self.missing = isinstance(error, NoSuchRun)
            except Exception:
                log.exception("run %s could not be followed", self.run_id)
                self._trouble = (
                    "an unexpected error ended the updates for a moment; see the observer's log"
                )
            self._follower = None
            self._silent = self._records.shown.live_since is not None
            self.asked.set()
            self._tell()
            await asyncio.sleep(AGAIN_SECONDS)
            if self._records.shown.live_since is None and not self._steady and not self.viewers:
                return

    async def _follow(self) -> None:
        follower = RunFollower(self._coordinator, self.run_id)
        async with follower.following() as standings:
            self._show(follower.run)
            self._follower = follower
            self._trouble = ""
            self.missing = False
            self.asked.set()
            tasks = [
                asyncio.create_task(self._mind(follower)),
                asyncio.create_task(self._read_transactions(follower)),
            ]
            try:
                async for _ in standings:
                    self._see(follower)
            finally:
                await cancel(tasks)

    def _see(self, follower: RunFollower) -> None:
        """Store the current status."""
        self._show(follower.run)
        snapshot = self._chain_moment(follower)
        record = self._records.shown
        record.moment = snapshot
        record.live_since = record.live_since or snapshot.at
        self._tiers = {member.wallet: member.tier for member in snapshot.members}
        record.past.keep(snapshot)
        self._silent = False
        self._tell()

    def _show(self, run: Run) -> None:
        """Show the run on chain, which may have been closed and created again."""
        owner = str(Pubkey.from_bytes(run.main_authority))
        shown_before = self._records.shown
        self._records.show(RunName(run.run_id, owner, run.created, run.identity))
        if self._records.shown is not shown_before:
            self._curves = None
            if shown_before.run.identity and shown_before.event_snapshots.event_count:
                self._say_other(shown_before.run)

    def _chain_moment(self, follower: RunFollower) -> RunSnapshot:
        record = self._records.shown
        figures = {
            **record.stated,
            **{wallet: member.figures for wallet, member in record.event_snapshots.members.items()},
        }
        return snapshot_of(follower.standing(), round(time.time() * 1000), figures)

    async def _mind(self, follower: RunFollower) -> None:
        """Log when the chain falls silent, and when it answers again."""
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

    # --- transactions ---

    async def _read_transactions(self, follower: RunFollower) -> None:
        pause = 0.0 if self._coordinator.pool.is_local else _PAUSE_SECONDS
        while True:
            try:
                transactions = await self._reader.read(_AT_ONCE)
            except AftermathError as error:
                log.info("transactions of run %s: %s", self.run_id, error.message)
                transactions = []
            for transaction in transactions:
                self._count(transaction, follower.newest_step)
            if transactions:
                self._tell()
            await asyncio.sleep(pause if len(transactions) == _AT_ONCE else AGAIN_SECONDS)

    def _count(self, transaction: Transaction, newest_step: int) -> None:
        record = self._records.shown
        if transaction.slot < record.run.created:
            return  # it belongs to an earlier run at the same address
        record.transactions += 1
        record.lamports += transaction.fee
        wallet = str(transaction.payer)
        for stated in transaction.stated:
            if stated.step > newest_step:
                # no member can have reached this step, and one such point would distort the whole
                # chart
                continue
            record.epochs[stated.epoch] = min(
                stated.step, record.epochs.get(stated.epoch, stated.step)
            )
            if len(record.epochs) > MOST_EPOCHS:
                del record.epochs[min(record.epochs)]
            tier = self._tiers.get(wallet)
            if tier is None:  # it has left, or attested before its tier was known
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
