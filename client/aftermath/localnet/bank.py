"""The chain itself: accounts, slots and history, for the event loop's thread only, and its start.

A transaction is final at once, so all three commitments see the same state. `execute` changes
accounts, `publish` makes the transaction part of the chain. In between, the ledger is written;
if that fails, `undo` restores the accounts.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from solders.account import Account
from solders.clock import Clock
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from aftermath.localnet.fees import RecentFees
from aftermath.localnet.ledger import MARK_SLOTS, Ledger, Recovered
from aftermath.localnet.preloaded_programs import (
    elf_of,
    is_upgradeable,
    preloaded,
    program_data_address,
    read_program,
)
from aftermath.localnet.records import Chain, Era, History, Landed, keys_of
from aftermath.localnet.runtime import (
    SYSTEM_ID,
    AccountState,
    ExecutionOutcome,
    Runtime,
    minimum_balance,
)
from aftermath.localnet.slots import MAX_PROCESSING_AGE, SLOTS_PER_EPOCH, Slots, TimeSource, time_of

log = logging.getLogger(__name__)

FAUCET_LAMPORTS = 500_000_000 * 10**9
FIRST_SLOT = 1


@dataclass(frozen=True, slots=True)
class Executed:
    """A landed transaction before it is published."""

    landed: Landed
    outcome: ExecutionOutcome

    def changed(self) -> list[AccountState]:
        """Return the accounts that the transaction changed, as it left them."""
        both = zip(self.outcome.before, self.outcome.after, strict=True)
        return [(key, new) for (key, old), (_, new) in both if old != new]


class Listener(Protocol):
    """Receives every slot and every published transaction. Must not block."""

    def on_slot(self, slot: int, parent: int) -> None: ...

    def on_transaction(self, executed: Executed) -> None: ...


class Bank:
    """One chain. `transactions` counts every landed transaction since genesis."""

    def __init__(
        self, time: TimeSource, slots: Slots, history: History, transactions: int = 0
    ) -> None:
        self.time = time
        self.slots = slots
        self.history = history
        self.transactions = transactions
        self.fees = RecentFees()
        self.listeners: list[Listener] = []
        self._runtime = Runtime()
        self._owners: dict[Pubkey, Pubkey] = {}
        self._owned: dict[Pubkey, dict[Pubkey, None]] = {}
        self._recent: dict[Signature, int] = {}
        self._recent_order: deque[tuple[int, Signature]] = deque()
        self._set_sysvars()

    @property
    def slot(self) -> int:
        return self.slots.current

    def tick(self) -> None:
        """Catch up with the time source."""
        parent = self.slot
        slot = self.slots.slot_at(self.time.now())
        if slot == parent:
            return
        self.slots.advance(slot)
        self._set_sysvars()
        while self._recent_order and self._recent_order[0][0] < slot - MAX_PROCESSING_AGE:
            self._recent.pop(self._recent_order.popleft()[1], None)
        for listener in self.listeners:
            listener.on_slot(slot, parent)

    def _set_sysvars(self) -> None:
        slot = self.slot
        epoch = slot // SLOTS_PER_EPOCH
        start = self.slots.unix_time(epoch * SLOTS_PER_EPOCH) or self.slots.eras[0].time
        now = self.slots.unix_time(slot) or start
        clock = Clock(slot, int(start), epoch, epoch + 1, int(now))
        self._runtime.set_clock(clock, self.slots.slot_hashes_account())

    def account(self, key: Pubkey) -> Account | None:
        return self._runtime.account(key)

    def balance(self, key: Pubkey) -> int:
        return self._runtime.balance(key)

    def owned_by(self, program: Pubkey) -> list[AccountState]:
        return [(key, self.account(key)) for key in self._owned.get(program, ())]

    def store(self, states: Sequence[AccountState]) -> None:
        """Set accounts outside any transaction (genesis, recovery)."""
        self._runtime.store(list(states))
        self._index(states)

    def _index(self, states: Iterable[AccountState]) -> None:
        for key, account in states:
            old = self._owners.get(key)
            new = account.owner if account is not None else None
            if new == old:
                continue
            if old is not None:
                del self._owned[old][key]
            if new is None:
                del self._owners[key]
            else:
                self._owners[key] = new
                self._owned.setdefault(new, {})[key] = None

    def check(self, tx: VersionedTransaction) -> str | None:
        """Return the TransactionError of an old or duplicate transaction, else None."""
        if not self.slots.is_recent(tx.message.recent_blockhash):
            return "BlockhashNotFound"
        return "AlreadyProcessed" if tx.signatures[0] in self._recent else None

    def simulate(self, tx: VersionedTransaction) -> ExecutionOutcome:
        return self._runtime.simulate(tx)

    def execute(self, tx: VersionedTransaction, wire: bytes) -> Executed | Any:
        """Run a transaction and keep its effects. Return `Executed`, or the error if it did not
        land.
        """
        outcome = self._runtime.execute(tx)
        if not outcome.landed:
            return outcome.error
        self._recent[tx.signatures[0]] = self.slot
        static_keys = len(outcome.keys) - outcome.loaded_writable - outcome.loaded_readonly
        split = static_keys + outcome.loaded_writable
        landed = Landed(
            slot=self.slot,
            time=int(self.slots.unix_time(self.slot) or 0),
            wire=wire,
            error=outcome.error,
            fee=outcome.fee.total,
            pre=outcome.pre_balances,
            post=outcome.post_balances,
            meta=bytes(outcome.meta),
            loaded_writable=[bytes(key) for key in outcome.keys[static_keys:split]],
            loaded_readonly=[bytes(key) for key in outcome.keys[split:]],
        )
        return Executed(landed, outcome)

    def undo(self, executed: Executed) -> None:
        self._runtime.undo(executed.outcome)
        self._recent.pop(executed.landed.signature, None)

    def publish(self, executed: Executed) -> None:
        outcome = executed.outcome
        landed = executed.landed
        self._index(outcome.after)
        self._recent_order.append((landed.slot, landed.signature))
        self.history.add(landed, outcome.keys)
        self.transactions += 1
        self.fees.note(landed.slot, outcome.fee.price, [key for key, _ in outcome.after])
        for listener in self.listeners:
            listener.on_transaction(executed)

    def recall(self, history: Iterable[Landed]) -> None:
        """Add the transactions of a recovered ledger, oldest first."""
        for landed in history:
            self.history.add(landed, keys_of(landed))
            if landed.slot >= self.slot - MAX_PROCESSING_AGE:
                self._recent[landed.signature] = landed.slot
                self._recent_order.append((landed.slot, landed.signature))

    def chain(self) -> Chain:
        """Return where the chain is, for the ledger."""
        return Chain(bytes(self.slots.genesis), list(self.slots.eras), self.slot, self.transactions)

    def accounts(self) -> Iterator[AccountState]:
        """Yield all accounts except those that the runtime creates itself."""
        for key in self._owners:
            yield key, self.account(key)


def faucet_of(genesis: Hash) -> Keypair:
    """Return the faucet's key. It need not be secret, because its lamports are worth nothing."""
    return Keypair.from_seed(hashlib.sha256(b"aftermath localnet faucet" + bytes(genesis)).digest())


def open_chain(
    directory: Path | None, time: TimeSource, slot_ms: int, programs: Sequence[tuple[Pubkey, Path]]
) -> tuple[Bank, Ledger | None]:
    """Return the bank of a new chain or of the one in a ledger, and the ledger if there is one.

    A new chain has a random genesis hash, so that transactions of an older network are not valid
    on it. Programs given at the start replace those in the ledger, except one that was deployed
    with an upgrade authority. Raises `LocalnetError`.
    """
    elves = [(key, read_program(path)) for key, path in programs]
    ledger = None if directory is None else Ledger(directory)
    try:
        recovered = None if ledger is None else ledger.recover()
        bank = _new(time, slot_ms) if recovered is None else _continued(recovered, time, slot_ms)
        for key, elf in elves:
            _load(bank, key, elf)
        if ledger is not None:
            ledger.start(bank.chain(), bank.accounts())
    except BaseException:
        if ledger is not None:
            ledger.close()
        raise
    return bank, ledger


def _new(time: TimeSource, slot_ms: int) -> Bank:
    genesis = Hash(os.urandom(32))
    now = time.now()
    bank = Bank(time, Slots(genesis, [Era(FIRST_SLOT, now, slot_ms)], now), History())
    bank.store([(faucet_of(genesis).pubkey(), Account(FAUCET_LAMPORTS, b"", SYSTEM_ID, False))])
    return bank


def _continued(recovered: Recovered, time: TimeSource, slot_ms: int) -> Bank:
    """Continue after the last slot that a client can have seen, at that slot's time or later."""
    chain = recovered.chain
    now = time.now()
    first = chain.slot + MARK_SLOTS + 1
    eras = [*chain.eras, Era(first, max(time_of(chain.eras, first) or 0.0, now), slot_ms)]
    bank = Bank(time, Slots(Hash(chain.genesis), eras, now), History(), chain.transactions)
    bank.store(recovered.accounts)
    bank.recall(recovered.history)
    log.info("ledger: slot %d, %d accounts", bank.slot, len(recovered.accounts))
    return bank


def _load(bank: Bank, program_id: Pubkey, elf: bytes) -> None:
    present = bank.account(program_data_address(program_id))
    if present is not None and (is_upgradeable(present) or elf_of(present) == elf):
        return
    if present is not None:
        log.info("program %s replaced by the given file", program_id)
    bank.store(preloaded(program_id, elf, minimum_balance))
