"""Creates and deletes the accounts of a server's members on its chain.

Identities cost nothing. So an identity gets an account only with its first transaction that would
succeed, and rate limits apply per network address and to all. An account without a membership is
deleted when its owner has been away for `AWAY_SECONDS`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from solders.pubkey import Pubkey

from aftermath.base.rate_limit import TokenBucket
from aftermath.chain.addresses import membership_address
from aftermath.chain.views import parse_run
from aftermath.localnet.errors import INVALID_REQUEST, JsonRpcError
from aftermath.localnet.node import EmbeddedNode
from aftermath.localnet.runtime import SYSTEM_ID

ALLOWANCE = 10**9
"""Lamports that an identity gets: the fees of about 200,000 transactions."""
LEAST = 10**8
"""Balance in lamports below which it gets them again."""
NEW_OF_ADDRESS = 300.0
"""Burst of new identities of one address: 256 members may start behind one router."""
NEW_OF_ADDRESS_RATE = 0.1
"""New identities per second, of one address."""
NEW_OF_ALL = 1200.0
NEW_OF_ALL_RATE = 0.2
"""New identities per second, of all addresses together."""
REMEMBERED = 4096
"""Addresses whose new identities are counted."""
AWAY_SECONDS = 600.0
"""Seconds of absence after which an account without a membership is deleted."""
SWEEP_SECONDS = 60.0


class NewIdentities:
    """Limits how many new identities get an account: per address, and in total."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_all = TokenBucket(clock, NEW_OF_ALL_RATE, NEW_OF_ALL)
        self._of_address: OrderedDict[str, TokenBucket] = OrderedDict()

    def count(self, address: str) -> None:
        """Count a new identity. Raise RpcError if its address or the total is over the limit."""
        own = self._bucket(address)
        if wait := max(own.next_in(), self._of_all.next_in()):
            raise JsonRpcError(
                INVALID_REQUEST,
                f"the server accepts no new identities for {wait:.0f} s; wait, or use an identity that it knows",
            )
        own.spare()
        self._of_all.spare()

    def _bucket(self, address: str) -> TokenBucket:
        """Return an address's bucket, and forget the one that was used least recently."""
        bucket = TokenBucket(self._clock, NEW_OF_ADDRESS_RATE, NEW_OF_ADDRESS)
        bucket = self._of_address.setdefault(address, bucket)
        self._of_address.move_to_end(address)
        if len(self._of_address) > REMEMBERED:
            self._of_address.popitem(last=False)
        return bucket


class Accounts:
    """Accounts of members of the run at address `run`. `here` says whether an identity is
    connected.
    """

    def __init__(
        self,
        node: EmbeddedNode,
        program: Pubkey,
        run: Pubkey,
        here: Callable[[Pubkey], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._program = program
        self._run = run
        self._here = here
        self._clock = clock
        self._new = NewIdentities(clock)
        self._away: dict[Pubkey, float] = {}
        """Since when the owners of accounts without a membership are not connected."""

    def missing(self, identity: Pubkey) -> bool:
        """Whether an identity has yet to be given money for fees."""
        return self._node.bank.balance(identity) < LEAST

    async def send(self, params: Any, identity: Pubkey, where: str) -> Any:
        """Answer sendTransaction of an identity at the address `where`. Raises RpcError."""
        send = self._node.methods["sendTransaction"]
        if self.missing(identity):
            if not self._node.bank.balance(identity):
                await self._check_first(params, identity)
                self._new.count(where)
            await self._node.provide(identity, ALLOWANCE)
        return await send(params)

    async def simulate(self, params: Any, identity: Pubkey) -> Any:
        """Answer simulateTransaction as if the identity had its money."""
        simulate = self._node.methods["simulateTransaction"]
        if not self.missing(identity):
            return await simulate(params)
        with self._node.lent(identity, ALLOWANCE):
            return await simulate(params)

    def balance(self, params: Any, identity: Pubkey) -> Any:
        """Answer getBalance, for the identity itself with what it may spend, given already or
        not.
        """
        answer: Any = self._node.methods["getBalance"](params)
        own = isinstance(params, list) and params[0] == str(identity)
        return {**answer, "value": ALLOWANCE} if own and self.missing(identity) else answer

    async def _check_first(self, params: Any, identity: Pubkey) -> None:
        """Raise RpcError for a first transaction that would not succeed: it gets no account."""
        config = {**(params[1] if len(params) > 1 and isinstance(params[1], dict) else {})}
        checked = {"encoding": config.get("encoding", "base58"), "sigVerify": True}
        with self._node.lent(identity, ALLOWANCE):
            result = await self._node.methods["simulateTransaction"]([params[0], checked])
            if result["value"]["err"] is not None:  # the same, told as by a failing preflight
                await self._node.methods["sendTransaction"](
                    [params[0], {**config, "skipPreflight": False}]
                )

    async def expire(self) -> None:
        """Remove accounts without a membership whose owners stay away, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """Remove what is due now."""
        bank = self._node.bank
        now = self._clock()
        run = bank.account(self._run)
        if run is None:
            return
        created = parse_run(bytes(run.data)).created
        away = {}
        for key, account in bank.owned_by(SYSTEM_ID):
            if (
                account is None or account.lamports > ALLOWANCE
            ):  # the faucet's, or the run's owner's
                continue
            member = membership_address(self._program, self._run, created, key)
            if not self._here(key) and bank.account(member) is None:
                away[key] = self._away.get(key, now)
        due = [key for key, since in away.items() if now - since >= AWAY_SECONDS]
        self._away = {key: since for key, since in away.items() if key not in due}
        if due:
            self._node.forget(due)
