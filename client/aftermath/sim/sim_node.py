"""The simulated cluster's RPC nodes: one bank, and a node that lags behind the others.

`localnet/` code answers, in process and without a thread, and the bank's slots follow virtual time.
A lagging node answers from the accounts of an earlier slot.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
from collections import defaultdict
from pathlib import Path

from solders.account import Account
from solders.hash import Hash
from solders.pubkey import Pubkey

from aftermath.localnet.bank import FIRST_SLOT, Bank, Executed, faucet_of
from aftermath.localnet.commit import Committer
from aftermath.localnet.json_rpc import Rpc
from aftermath.localnet.preloaded_programs import preloaded, read_program
from aftermath.localnet.read_methods import ReadMethods
from aftermath.localnet.records import Era, History
from aftermath.localnet.runtime import minimum_balance
from aftermath.localnet.slots import Slots
from aftermath.localnet.subscriptions import Subscriptions
from aftermath.localnet.transaction_methods import TransactionMethods

START = 1_800_000_000  # unix time at virtual second 0
SLOT_MS = 400
BEHIND = 25  # slots by which a lagging node is behind
_GENESIS = Hash(hashlib.sha256(b"aftermath simulated cluster").digest())


class LoopTime:
    """The `localnet.slots.TimeSource` of the running virtual loop."""

    def now(self) -> float:
        return START + asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Past:
    """A read-only view of a bank as it was some slots ago."""

    def __init__(self, bank: Bank, slots: int) -> None:
        self._bank = bank
        self._behind = slots
        self._changes: dict[Pubkey, tuple[list[int], list[Account | None]]] = defaultdict(
            lambda: ([], [])
        )
        bank.listeners.append(self)

    def __getattr__(self, name: str) -> object:
        return getattr(self._bank, name)

    @property
    def slot(self) -> int:
        return max(FIRST_SLOT, self._bank.slot - self._behind)

    def account(self, key: Pubkey) -> Account | None:
        slots, before = self._changes.get(key, ((), ()))
        at = bisect.bisect_right(slots, self.slot)
        return before[at] if at < len(before) else self._bank.account(key)

    def on_slot(self, slot: int, parent: int) -> None:
        pass

    def on_transaction(self, executed: Executed) -> None:
        for key, before in executed.outcome.before:
            slots, states = self._changes[key]
            old = bisect.bisect_right(slots, self.slot)
            del slots[:old], states[:old]
            slots.append(executed.landed.slot)
            states.append(before)


class SimNode:
    """Answers at any address of the cluster."""

    def __init__(self, programs: list[tuple[Pubkey, Path]]) -> None:
        self.bank = Bank(
            LoopTime(), Slots(_GENESIS, [Era(FIRST_SLOT, START, SLOT_MS)], START), History()
        )
        for program, path in programs:
            self.bank.store(preloaded(program, read_program(path), minimum_balance))
        self.subscriptions = Subscriptions(self.bank)
        self._rpc = self._answering(self.bank)
        self._lagging = self._answering(_Past(self.bank, BEHIND))  # type: ignore[arg-type]  # what readers ask of a bank

    def _answering(self, bank: Bank) -> Rpc:
        reading = ReadMethods(bank)
        sending = TransactionMethods(
            self.bank, Committer(self.bank, None), reading, faucet_of(_GENESIS)
        )
        return Rpc(bank, {**reading.methods(), **sending.methods()})

    async def answer(self, body: bytes, *, lagging: bool = False) -> bytes:
        """Return the reply to an HTTP request's body."""
        return await (self._lagging if lagging else self._rpc).answer(body)
