"""One embedded chain behind its JSON-RPC methods, without sockets: bank, ledger, and what moves its slots.

Decided: whoever serves it puts sockets before it and chooses which of `methods` and `subscriptions` a client may use;
everything that changes the chain goes through one `Committer`, so all of it is on disk before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from solders.account import Account
from solders.pubkey import Pubkey

from aftermath.localnet.commit import Committer
from aftermath.localnet.config import LocalnetConfig
from aftermath.localnet.errors import LocalnetError, RpcError
from aftermath.localnet.genesis import faucet_of, open_chain
from aftermath.localnet.liveness import Health
from aftermath.localnet.reading import Reading
from aftermath.localnet.rpc import Handler, Rpc
from aftermath.localnet.runtime import SYSTEM_ID
from aftermath.localnet.sending import Sending
from aftermath.localnet.subscriptions import Subscriptions


class Node:
    """A chain that runs from `start` to `close`. `config`'s host and port are for whoever serves it.

    Raises LocalnetError where the ledger or a program cannot be read.
    """

    def __init__(self, config: LocalnetConfig) -> None:
        self.time = config.time
        self.bank, self._ledger = open_chain(config.ledger, config.time, config.slot_ms, config.programs)
        self._committer = Committer(self.bank, self._ledger)
        self.subscriptions = Subscriptions(self.bank)
        self.health = Health(self.bank, self._committer)
        reading = Reading(self.bank)
        self._sending = Sending(self.bank, self._committer, reading, faucet_of(self.bank.slots.genesis))
        self.methods: dict[str, Handler] = {
            **reading.methods(),
            **self._sending.methods(),
            **self.health.methods(),
        }
        """All that a client can ask, by JSON-RPC names."""
        self._clockwork: asyncio.Task[None] | None = None

    def rpc(self, methods: dict[str, Handler]) -> Rpc:
        """Answers calls of these methods."""
        return Rpc(self.bank, methods)

    def start(self) -> None:
        """From now on slots follow the time."""
        self._clockwork = asyncio.create_task(self._keep_time())
        self.health.watch(self._clockwork)

    async def provide(self, key: Pubkey, lamports: int) -> None:
        """See that an account holds at least so many. Raises LocalnetError."""
        missing = lamports - self.bank.balance(key)
        if missing > 0:
            try:
                await self._sending.give(key, missing)
            except RpcError as error:
                raise LocalnetError(error.message, "Ask for fewer lamports") from None

    @contextlib.contextmanager
    def lent(self, key: Pubkey, lamports: int) -> Iterator[None]:
        """Have an account hold so many lamports in the block, which must not give way to other tasks."""
        before = self.bank.account(key)
        self.bank.store([(key, Account(lamports, b"", SYSTEM_ID, False))])
        try:
            yield
        finally:
            self.bank.store([(key, before)])

    def forget(self, keys: Sequence[Pubkey]) -> None:
        """Remove accounts, from what is kept on disk too."""
        self.bank.store([(key, None) for key in keys])
        if self._ledger is not None:
            self._ledger.put([(key, None) for key in keys])

    async def _keep_time(self) -> None:
        while True:
            await self.time.sleep(self.bank.slots.seconds_to_next(self.time.now()))
            self.bank.tick()

    async def close(self) -> None:
        """Stop; everything acknowledged is in the ledger already."""
        if self._clockwork is not None:
            self._clockwork.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clockwork
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
