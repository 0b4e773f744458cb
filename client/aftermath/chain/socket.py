"""One account subscription that reconnects for ever: bounded messages, ping every 5 s, back-off, next endpoint after
a failure.

Decided: a websocket that sends more than any run changes is a failure too, since each message costs a third of a
millisecond; the back-off is forgotten only of one that has been up for longer than it, so that what fails again and
again costs no more than one that cannot be had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solders.account_decoder import UiAccountEncoding
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig
from solders.rpc.requests import AccountSubscribe

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.bucket import Bucket
from aftermath.chain.accounts import COMMITMENT, AccountData, parse_reply
from aftermath.chain.endpoints import describe, numbered, reply_to, shown
from aftermath.chain.failures import BadReply
from aftermath.chain.outages import Outages
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wire import OPEN_SECONDS, Connection
from aftermath.coordinator.errors import CoordinatorError

log = logging.getLogger(__name__)

BACKOFF_MAX = 5.0
FAILURES_TO_TELL = 3  # in a row, of websockets that did not last
MOST_AT_ONCE, MOST_PER_SECOND = 500, 100
"""Messages of a websocket."""


@dataclass(frozen=True)
class Push:
    """A notification: the account as of `slot` (None when it is gone), and the message's size in bytes."""

    slot: int
    account: AccountData | None
    size: int


class AccountSocket:
    """Calls `on_push` for every notification and `on_subscribed` after every successful subscription."""

    def __init__(
        self, pool: RpcPool, address: Pubkey, on_push: Callable[[Push], None], on_subscribed: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._address = address
        self._on_push = on_push
        self._on_subscribed = on_subscribed
        self._connection: Connection | None = None
        self._subscription: int | None = None
        self._asked = 0
        self._failures = 0
        self._outages = Outages()
        self._next = 0
        self.ready = asyncio.Event()
        self.bytes_max = 0

    @property
    def number(self) -> int:
        """Which of the endpoints it is, or will be, of."""
        return self._next % len(self._pool.endpoints)

    async def run(self) -> None:
        """Connect, subscribe, listen; and again, until cancelled."""
        while True:
            url = self._pool.endpoints[self.number].ws
            try:
                await self._listen(url)
                reason = "closed"
            except Exception as error:  # whatever a node sends costs its connection, and the run is polled meanwhile
                reason = describe(error)
            finally:
                self.ready.clear()
            self._failures += 1
            self._next += 1
            if self._failures >= FAILURES_TO_TELL:
                self._tell(shown(url), reason)
            await asyncio.sleep(self._pool.backoff(self._failures, BACKOFF_MAX))

    def _tell(self, where: str, reason: str) -> None:
        also = self._outages.lasts(asyncio.get_running_loop().time())
        if also is not None:
            log.warning("no websocket to %s (%s)%s: the run is polled meanwhile", where, reason, also)

    async def drop(self) -> None:
        """Close the current connection, so that `run` makes a new one."""
        if self._connection is not None:
            await self._connection.close()

    async def _listen(self, url: str) -> None:
        config = RpcAccountInfoConfig(UiAccountEncoding.Base64Zstd, None, COMMITMENT)
        now = asyncio.get_running_loop().time
        async with self._pool.wire.websocket(url) as connection:
            self._connection, self._subscription = connection, None
            pace, opened = Bucket(now, MOST_PER_SECOND, MOST_AT_ONCE), now()
            self._asked += 1
            await connection.send(numbered(AccountSubscribe(self._address, config), self._asked))
            async with asyncio.timeout(OPEN_SECONDS):
                while self._subscription is None:
                    self._handle(await connection.recv())
            async for message in connection:
                if not pace.spare():
                    raise BadReply(f"it sent more than {MOST_PER_SECOND} messages a second")
                if now() - opened > BACKOFF_MAX:
                    self._failures = 0
                self._handle(message)

    def _handle(self, message: str | bytes) -> None:
        try:
            body = json_value(message)
        except Malformed as error:
            raise BadReply("the websocket sent something that is not JSON") from error
        if not isinstance(body, dict):
            raise BadReply("the websocket sent something that is not JSON-RPC")
        if body.get("method") == "accountNotification" and self._subscription is not None:
            self._notify(body.get("params"), len(message.encode() if isinstance(message, str) else message))
        elif "method" not in body:
            self._confirm(body)

    def _confirm(self, body: dict[str, Any]) -> None:
        try:
            result = reply_to(self._asked, body).get("result")
        except ValueError as error:
            raise BadReply(f"the websocket sent a {error}") from error
        if self._subscription is not None:
            raise BadReply("the websocket answered a request twice")
        if type(result) is not int:
            raise BadReply(f"the websocket refused the subscription: {str(body.get('error'))[:200]}")
        self._subscription = result
        if self._outages.ends():
            log.warning("the websocket is back: changes of the run are pushed again")
        self.ready.set()
        self._on_subscribed()

    def _notify(self, params: Any, size: int) -> None:
        if not isinstance(params, dict) or params.get("subscription") != self._subscription:
            return
        slot, account = parse_reply(params.get("result"))
        self.bytes_max = max(self.bytes_max, size)
        try:
            self._on_push(Push(slot, account, size))
        except CoordinatorError:
            log.exception("a push could not be used")
