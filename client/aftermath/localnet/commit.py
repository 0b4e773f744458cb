"""Group commit: transactions that arrive in one turn of the event loop share one sync.

They are executed, stored and then published. Nothing else runs between execution and the sync, so
no client reads a state that is not on disk. The sync blocks the loop for some milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from solders.transaction import VersionedTransaction

from aftermath.localnet.bank import Bank, Executed
from aftermath.localnet.errors import INTERNAL_ERROR, JsonRpcError, LedgerError
from aftermath.localnet.ledger import MARK_SLOTS, Ledger

# While several clients send, a batch waits for half of the last sync's duration, at most this many
# seconds, so that more transactions share the next sync. A single client never waits.
MAX_GATHER = 0.005

Waiting = tuple[VersionedTransaction, bytes, "asyncio.Future[Any]"]


class Committer:
    """Passes all transactions to the bank. As its first listener it also marks slots."""

    def __init__(self, bank: Bank, ledger: Ledger | None) -> None:
        self._bank = bank
        self._ledger = ledger
        self._waiting: list[Waiting] = []
        self._marked = bank.slot
        self._gather = 0.0
        bank.listeners.append(self)

    async def submit(self, tx: VersionedTransaction, wire: bytes) -> Any:
        """Execute a signed, sanitised transaction. Return None if it landed, else its error (JSON).

        Raise `JsonRpcError` if the ledger cannot be written; the chain is then unchanged.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._waiting:
            loop.call_later(self._gather, self._flush)
        self._waiting.append((tx, wire, future))
        return await future

    def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        self._bank.tick()
        landed: list[tuple[Executed, asyncio.Future[Any]]] = []
        for tx, wire, future in batch:
            try:
                result = self._bank.check(tx) or self._bank.execute(tx, wire)
            except JsonRpcError as error:
                _fail(future, error)
                continue
            if isinstance(result, Executed):
                landed.append((result, future))
            elif not future.done():
                future.set_result(result)
        if landed:
            self._store(landed)

    def _store(self, landed: list[tuple[Executed, asyncio.Future[Any]]]) -> None:
        if self._ledger is not None:
            started = time.monotonic()
            try:
                self._ledger.append(
                    [(executed.landed, executed.changed()) for executed, _ in landed]
                )
            except LedgerError as error:
                for executed, future in reversed(landed):
                    self._bank.undo(executed)
                    _fail(future, JsonRpcError(INTERNAL_ERROR, str(error)))
                return
            self._gather = (
                min(MAX_GATHER, (time.monotonic() - started) / 2) if len(landed) > 1 else 0.0
            )
        for executed, future in landed:
            self._bank.publish(executed)
            if not future.done():
                future.set_result(None)

    @property
    def trouble(self) -> str | None:
        """Return why the last write to the ledger failed, or None."""
        return self._ledger.trouble if self._ledger is not None else None

    def on_slot(self, slot: int, parent: int) -> None:
        """Store how far the chain got, every `MARK_SLOTS` slots."""
        if self._ledger is None or slot < self._marked + MARK_SLOTS:
            return
        with contextlib.suppress(LedgerError):  # the ledger has logged it
            self._ledger.mark(slot)
            self._marked = slot

    def on_transaction(self, executed: Executed) -> None:
        """Do nothing: the transaction is stored already."""


def _fail(future: asyncio.Future[Any], error: JsonRpcError) -> None:
    if not future.done():
        future.set_exception(error)
