"""Read one run from nodes, decide which answers to accept, and keep its newest state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from solders.pubkey import Pubkey

from aftermath.chain.addresses import CLOCK
from aftermath.chain.clock import ChainClock, sysvar_time
from aftermath.chain.failures import BadReply
from aftermath.chain.node_client import AccountData, NodeClient
from aftermath.chain.rpc import RpcPool
from aftermath.chain.views import parse_run
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun
from aftermath.rules.run import Run
from aftermath.rules.state import RunState

OUTAGE_SECONDS = 4.0
"""Seconds without news of the run that count as an outage. A poll of a working node takes less."""
MOST_AHEAD = 64  # changes that one answer may be ahead of the newest known state


class NewestRun:
    """Keeps the state with the highest `seq`, and wakes its readers when there is a newer one."""

    def __init__(self) -> None:
        self.slot = 0
        """The highest slot at which the run was read or pushed. Later reads ask for this slot or a
        later one.
        """
        self.last_outage_end = float("-inf")
        """Time on the event loop's clock at which the run was read again after an outage."""
        self.clock = ChainClock(lambda: asyncio.get_running_loop().time())
        self._run: Run | None = None
        self._heard = 0.0
        self._ended: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def known(self) -> Run | None:
        """The newest state, None before the first one."""
        return self._run

    @property
    def run(self) -> Run:
        """The newest state. Raises CoordinatorError before the first one."""
        if self._run is None:
            raise CoordinatorError("the run has not been read yet")
        return self._run

    @property
    def silent(self) -> float:
        """Seconds since the run was last read or pushed."""
        return asyncio.get_running_loop().time() - self._heard

    def take(self, run: Run, slot: int) -> None:
        """Keep a state that was read or pushed, if it is newer."""
        previous = self._run
        if previous is not None and self.silent > OUTAGE_SECONDS:
            self.last_outage_end = asyncio.get_running_loop().time()
        self._heard = asyncio.get_running_loop().time()
        self.slot = max(self.slot, slot)
        if previous is not None and run.seq <= previous.seq:
            return
        if previous is not None and run.state_started_at > previous.state_started_at:
            self.clock.observe(run.state_started_at)
        self._run = run
        self._wake()

    def end(self, error: BaseException) -> None:
        """Have `updates` raise this error after the newest state."""
        self._ended = error
        self._wake()

    async def updates(self) -> AsyncIterator[Run]:
        """Yield the newest state at once, then after every change; a slow reader misses the states
        in between.
        """
        last_yielded: Run | None = None
        while True:
            changed = self._changed
            if self.run is not last_yielded:
                last_yielded = self.run
                yield last_yielded
            elif self._ended is not None:
                raise self._ended
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RunSource:
    """Reads the run at `address` into `newest`."""

    def __init__(self, pool: RpcPool, address: Pubkey, program: Pubkey, newest: NewestRun) -> None:
        self.newest = newest
        self._pool = pool
        self._address = address
        self._program = program

    async def read(
        self, node: NodeClient, extra: Sequence[Pubkey] = (), *, min_slot: int = 0
    ) -> tuple[Run, list[AccountData | None]]:
        """Read the run, chain time and `extra` accounts from a node, at one slot that is not older
        than `newest`.

        Raises NoSuchRun, and BadReply if the answer cannot be used.
        """
        slot_wanted = max(self.newest.slot, min_slot)
        slot, (account, clock, *extra_accounts) = await node.accounts(
            [self._address, CLOCK, *extra], slot_wanted or None
        )
        if slot < slot_wanted:
            raise BadReply("the RPC node answered for an older slot than requested")
        time = None if clock is None else sysvar_time(clock.data)
        run = await self._believed(account, slot)
        if len(self._pool.endpoints) > 1 and node.stands_still(
            slot, asyncio.get_running_loop().time()
        ):
            raise BadReply("the RPC node is behind: its slot stands still")
        if time is not None:
            self.newest.clock.observe(time)
        self.newest.take(run, slot)
        return run, extra_accounts

    async def _believed(self, account: AccountData | None, slot: int) -> Run:
        """Return the run in an account that a node sent, if no other node contradicts it.

        A closed or finished run ends a member, so other nodes are asked for a state as of `slot`
        or later. They are also asked about a state far ahead: after accepting it, the watcher would
        ignore real states with a lower `seq`. Raises NoSuchRun, and BadReply.
        """
        if account is None or not self.is_here(account):
            if not await self._pool.uncontradicted(lambda node: self._is_gone(node, slot)):
                raise BadReply("the RPC node does not know the run, but another node does")
            if self.newest.known is not None:
                raise NoSuchRun(
                    "the run was closed: its accounts are gone",
                    "A closed run cannot be reopened; list the others: aftermath-solana list-runs",
                )
            raise NoSuchRun(
                "the run does not exist on this cluster: it was never created, or was closed",
                "Check the run id, --rpc and the program id: aftermath-solana list-runs",
            )
        run = self.parsed(account.data)
        if self.jumps(run) and not await self._pool.uncontradicted(
            lambda node: self._has_reached(node, run.seq)
        ):
            raise BadReply("the RPC node sent a state that another node has not reached")
        if self.is_end(run) and not await self._pool.uncontradicted(
            lambda node: self._is_finished(node, slot)
        ):
            raise BadReply(
                "the RPC node says that the run is finished, but another node says that it is not"
            )
        return run

    async def _is_gone(self, node: NodeClient, slot: int) -> bool:
        _, account = await node.account(self._address, min_slot=slot)
        return account is None or not self.is_here(account)

    async def _is_finished(self, node: NodeClient, slot: int) -> bool:
        _, account = await node.account(self._address, min_slot=slot)
        return account is None or self.parsed(account.data).state is RunState.FINISHED

    async def _has_reached(self, node: NodeClient, seq: int) -> bool:
        _, account = await node.account(self._address, min_slot=self.newest.slot or None)
        return account is None or self.parsed(account.data).seq + MOST_AHEAD >= seq

    def jumps(self, run: Run) -> bool:
        """Return whether the run is further ahead of the newest known state than a push may be."""
        newest = self.newest.known
        return newest is not None and run.seq > newest.seq + MOST_AHEAD

    def is_end(self, run: Run) -> bool:
        """Return whether the run is finished now but was not when it was last read."""
        newest = self.newest.known
        return run.state is RunState.FINISHED and (
            newest is None or newest.state is not RunState.FINISHED
        )

    def is_here(self, account: AccountData) -> bool:
        """Return whether the account still holds the run. Raises like `parsed`.

        A run that was closed and created again is another run, whose members never agreed to it.
        """
        if account.owner != self._program:
            return False
        newest = self.newest.known
        if newest is None:
            return True
        run = self.parsed(account.data)
        return (run.created, run.main_authority) == (newest.created, newest.main_authority)

    def parsed(self, data: bytes) -> Run:
        """Parse the run in an account's data. Raises AccountError, and BadReply for another run."""
        run = parse_run(data)
        newest = self.newest.known
        if newest is not None:
            is_ours = run.run_id == newest.run_id
        else:  # not with `run_addresses`, which caches every id
            seeds = [b"run", run.run_id.encode()]
            is_ours = Pubkey.find_program_address(seeds, self._program)[0] == self._address
        if not is_ours:
            raise BadReply("the RPC node sent another run")
        return run
