"""One embedded chain and its JSON-RPC methods, without sockets.

The caller adds sockets and chooses which of `methods` and `subscriptions` a client may use. All
changes go through one `Committer`, so they are on disk before they are acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from aftermath.localnet.bank import Bank, faucet_of, open_chain
from aftermath.localnet.commit import Committer
from aftermath.localnet.config import LocalnetConfig
from aftermath.localnet.errors import NODE_UNHEALTHY, JsonRpcError, LedgerError, LocalnetError
from aftermath.localnet.json_rpc import Handler, Rpc
from aftermath.localnet.read_methods import ReadMethods
from aftermath.localnet.runtime import SYSTEM_ID, AccountState
from aftermath.localnet.subscriptions import Subscriptions
from aftermath.localnet.transaction_methods import TransactionMethods

# The texts and error -32005 are those of a validator (agave 3.1).
OK = "ok"
BEHIND = "behind"
UNKNOWN = "unknown"


class Health:
    """The health of a network: slots advance, and the ledger can be written."""

    def __init__(self, bank: Bank, committer: Committer) -> None:
        self._bank = bank
        self._committer = committer
        self._clockwork: asyncio.Task[None] | None = None

    def watch(self, clockwork: asyncio.Task[None]) -> None:
        """Expect this task to move the slots from now on."""
        self._clockwork = clockwork

    def methods(self) -> dict[str, Callable[[Any], Any]]:
        return {"getHealth": self.answer}

    def answer(self, params: Any) -> str:
        """Return "ok", or raise the error that says what is wrong."""
        if behind := self._behind():
            raise JsonRpcError(
                NODE_UNHEALTHY, f"Node is behind by {behind} slots", {"numSlotsBehind": behind}
            )
        if (trouble := self._trouble()) is not None:
            raise JsonRpcError(
                NODE_UNHEALTHY, f"Node is unhealthy: {trouble}", {"numSlotsBehind": None}
            )
        return OK

    def word(self) -> str:
        """Return the text of /health."""
        if self._behind():
            return BEHIND
        return OK if self._trouble() is None else UNKNOWN

    def _behind(self) -> int:
        return self._bank.slots.behind(self._bank.time.now())

    def _trouble(self) -> str | None:
        if self._clockwork is not None and self._clockwork.done():
            return "its slots have stopped"
        trouble = self._committer.trouble
        return None if trouble is None else f"its ledger cannot be written ({trouble})"


log = logging.getLogger(__name__)


class EmbeddedNode:
    """A chain that runs from `start` to `close`. The caller uses the config's host and port.

    Raises LocalnetError if the ledger or a program cannot be read.
    """

    def __init__(self, config: LocalnetConfig) -> None:
        self.time = config.time
        self.bank, self._ledger = open_chain(
            config.ledger, config.time, config.slot_ms, config.programs
        )
        self._committer = Committer(self.bank, self._ledger)
        self.subscriptions = Subscriptions(self.bank)
        self.health = Health(self.bank, self._committer)
        reading = ReadMethods(self.bank)
        self._sending = TransactionMethods(
            self.bank, self._committer, reading, faucet_of(self.bank.slots.genesis)
        )
        self.methods: dict[str, Handler] = {
            **reading.methods(),
            **self._sending.methods(),
            **self.health.methods(),
        }
        """Handlers by JSON-RPC name."""
        self._clockwork: asyncio.Task[None] | None = None

    def rpc(self, methods: dict[str, Handler]) -> Rpc:
        """Return an endpoint for these methods."""
        return Rpc(self.bank, methods)

    def start(self) -> None:
        """Let slots follow the time."""
        self._clockwork = asyncio.create_task(self._keep_time())
        self.health.watch(self._clockwork)

    async def provide(self, key: Pubkey, lamports: int) -> None:
        """Raise an account's balance to this many lamports. Raises LocalnetError."""
        missing = lamports - self.bank.balance(key)
        if missing > 0:
            try:
                await self._sending.give(key, missing)
            except JsonRpcError as error:
                raise LocalnetError(error.message, "Ask for fewer lamports") from None

    @contextlib.contextmanager
    def lent(self, key: Pubkey, lamports: int) -> Iterator[None]:
        """Set an account's balance inside the context, which must not await anything."""
        original = self.bank.account(key)
        self.bank.store([(key, Account(lamports, b"", SYSTEM_ID, False))])
        try:
            yield
        finally:
            self.bank.store([(key, original)])

    def forget(self, keys: Sequence[Pubkey]) -> None:
        """Delete accounts. If the ledger cannot be written, log a warning and keep them."""
        states: list[AccountState] = [(key, None) for key in keys]
        if self._ledger is not None:
            try:
                self._ledger.put(states)
            except LedgerError as error:
                log.warning("accounts not deleted: %s", error.message)
                return
        self.bank.store(states)

    async def _keep_time(self) -> None:
        while True:
            await self.time.sleep(self.bank.slots.seconds_to_next(self.time.now()))
            self.bank.tick()

    async def close(self) -> None:
        """Stop. Everything acknowledged is in the ledger already."""
        try:
            if self._clockwork is not None:
                self._clockwork.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._clockwork
        finally:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None
