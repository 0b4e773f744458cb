"""Fund the accounts of a server's members on the embedded chain, and delete unused ones.

Anyone can create identities for free. So the server funds an identity only when its first
transaction would succeed, and limits the rate per network address and in total. It deletes an
account without a membership after its identity was disconnected for `AWAY_SECONDS`.
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

FUNDING_LAMPORTS = 10**9
"""Lamports that the server gives an identity: the fees of about 200,000 transactions."""
MIN_LAMPORTS = 10**8
"""Balance in lamports below which the server funds an identity again."""
NEW_PER_ADDRESS = 300.0
"""Burst of new identities per address. 256 members may start behind one router."""
NEW_PER_ADDRESS_RATE = 0.1
"""New identities per second and address."""
NEW_IN_TOTAL = 1200.0
"""Burst of new identities from all addresses together."""
NEW_IN_TOTAL_RATE = 0.2
"""New identities per second from all addresses together."""
MAX_ADDRESSES = 4096
"""Addresses whose rate limits are remembered. The least recently used one is dropped."""
AWAY_SECONDS = 600.0
"""Seconds without a connection after which an account without a membership is deleted."""
SWEEP_SECONDS = 60.0
"""Seconds between two searches for unused accounts."""


class NewIdentities:
    """Limits the rate of new identities, per network address and in total."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._total = TokenBucket(clock, NEW_IN_TOTAL_RATE, NEW_IN_TOTAL)
        self._by_address: OrderedDict[str, TokenBucket] = OrderedDict()

    def count(self, address: str) -> None:
        """Count a new identity. Raise JsonRpcError if a rate limit is exhausted."""
        per_address = self._bucket(address)
        if wait := max(per_address.next_in(), self._total.next_in()):
            raise JsonRpcError(
                INVALID_REQUEST,
                f"the server accepts no new identities for {wait:.0f} s; wait, or use an identity that it knows",
            )
        per_address.try_take()
        self._total.try_take()

    def _bucket(self, address: str) -> TokenBucket:
        """Return the token bucket of an address. Drop the least recently used one if full."""
        bucket = TokenBucket(self._clock, NEW_PER_ADDRESS_RATE, NEW_PER_ADDRESS)
        bucket = self._by_address.setdefault(address, bucket)
        self._by_address.move_to_end(address)
        if len(self._by_address) > MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        return bucket


class Accounts:
    """Funds, simulates and deletes the accounts of the members of one run.

    `run` is the run's address. `is_connected` returns whether an identity has a connection.
    """

    def __init__(
        self,
        node: EmbeddedNode,
        program: Pubkey,
        run: Pubkey,
        is_connected: Callable[[Pubkey], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._program = program
        self._run = run
        self._is_connected = is_connected
        self._clock = clock
        self._new = NewIdentities(clock)
        self._absent_since: dict[Pubkey, float] = {}
        """Clock time since which an identity without a membership has had no connection."""

    def needs_funds(self, identity: Pubkey) -> bool:
        """Return whether an identity has less than `MIN_LAMPORTS`."""
        return self._node.bank.balance(identity) < MIN_LAMPORTS

    async def send(self, params: Any, identity: Pubkey, address: str) -> Any:
        """Send a transaction, and fund its identity first if needed. Raises JsonRpcError."""
        send = self._node.methods["sendTransaction"]
        if self.needs_funds(identity):
            if not self._node.bank.balance(identity):
                await self._check_first_transaction(params, identity)
                self._new.count(address)
            await self._node.provide(identity, FUNDING_LAMPORTS)
        return await send(params)

    async def simulate(self, params: Any, identity: Pubkey) -> Any:
        """Answer simulateTransaction as if the identity were funded."""
        simulate = self._node.methods["simulateTransaction"]
        if not self.needs_funds(identity):
            return await simulate(params)
        with self._node.lent(identity, FUNDING_LAMPORTS):
            return await simulate(params)

    def balance(self, params: Any, identity: Pubkey) -> Any:
        """Answer getBalance. An identity that is not funded yet sees the amount it will get."""
        answer: Any = self._node.methods["getBalance"](params)
        is_own = isinstance(params, list) and params[0] == str(identity)
        return (
            {**answer, "value": FUNDING_LAMPORTS}
            if is_own and self.needs_funds(identity)
            else answer
        )

    async def _check_first_transaction(self, params: Any, identity: Pubkey) -> None:
        """Raise JsonRpcError unless an identity's first transaction would succeed."""
        config = {**(params[1] if len(params) > 1 and isinstance(params[1], dict) else {})}
        checked = {"encoding": config.get("encoding", "base58"), "sigVerify": True}
        with self._node.lent(identity, FUNDING_LAMPORTS):
            result = await self._node.methods["simulateTransaction"]([params[0], checked])
            if result["value"]["err"] is not None:
                # Send it with the preflight, which raises the error that clients expect.
                await self._node.methods["sendTransaction"](
                    [params[0], {**config, "skipPreflight": False}]
                )

    async def expire(self) -> None:
        """Delete unused accounts every `SWEEP_SECONDS` until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """Delete the accounts whose identities were disconnected for long enough."""
        bank = self._node.bank
        now = self._clock()
        run = bank.account(self._run)
        if run is None:
            return
        created = parse_run(bytes(run.data)).created
        absent_since = {}
        for key, account in bank.owned_by(SYSTEM_ID):
            # Skip the faucet and the run's owner: they hold more than a member.
            if account is None or account.lamports > FUNDING_LAMPORTS:
                continue
            member = membership_address(self._program, self._run, created, key)
            if not self._is_connected(key) and bank.account(member) is None:
                absent_since[key] = self._absent_since.get(key, now)
        due = [key for key, since in absent_since.items() if now - since >= AWAY_SECONDS]
        self._absent_since = {key: at for key, at in absent_since.items() if key not in due}
        if due:
            self._node.forget(due)
