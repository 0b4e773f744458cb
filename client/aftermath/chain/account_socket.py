"""One account subscription that reconnects until it is cancelled: back-off, and the next endpoint
after a failure.

solana-py makes the requests and reads the messages. `chain.node_client` opens the connection,
because solana-py 0.36 connects with the deprecated client of websockets, which knows no proxies.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from solana.rpc.commitment import Confirmed
from solana.rpc.websocket_api import SolanaWsClientProtocol
from solders.pubkey import Pubkey
from solders.rpc.responses import AccountNotification, Notification, SubscriptionResult
from websockets.exceptions import ConnectionClosedOK

from aftermath.base.bounded import json_as
from aftermath.base.rate_limit import TokenBucket
from aftermath.chain.endpoints import describe, shown
from aftermath.chain.failures import BadReply
from aftermath.chain.node_client import OPEN_SECONDS, AccountData, Connection
from aftermath.chain.nodes import Outages
from aftermath.chain.rpc import RpcPool, understood

log = logging.getLogger(__name__)

MOST_AT_ONCE = 500  # messages to handle at once
MOST_PER_SECOND = 100

BACKOFF_MAX = 5.0
FAILURES_TO_TELL = 3  # failures in a row until a warning


class AccountSocket:
    """Calls `on_push` for every notification and `on_subscribed` after every successful
    subscription.
    """

    def __init__(
        self,
        pool: RpcPool,
        address: Pubkey,
        on_push: Callable[[AccountData], None],
        on_subscribed: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._address = address
        self._on_push = on_push
        self._on_subscribed = on_subscribed
        self._connection: Connection | None = None
        self._failures = 0
        self._next = 0
        self._outages = Outages()
        self.ready = asyncio.Event()
        """Set while the account is subscribed to."""
        self.bytes_max = 0
        """Size of the largest notification."""

    async def run(self) -> None:
        """Connect, subscribe, listen; and again, until cancelled."""
        while True:
            endpoints = self._pool.endpoints
            url = endpoints[self._next % len(endpoints)].ws
            try:
                await self._listen(url)
            except ConnectionClosedOK:
                reason = "closed"
            except Exception as error:
                # nothing that a node sends may end the member: drop the connection and poll
                reason = describe(error)
            finally:
                self.ready.clear()
            self._failures += 1
            self._next += 1
            if self._failures >= FAILURES_TO_TELL:
                self._tell(shown(url), reason)
            await asyncio.sleep(self._pool.backoff(self._failures, BACKOFF_MAX))

    def _tell(self, node: str, reason: str) -> None:
        repeat_note = self._outages.lasts(asyncio.get_running_loop().time())
        if repeat_note is not None:
            log.warning(
                "no websocket to %s (%s)%s: polling the run instead", node, reason, repeat_note
            )

    async def drop(self) -> None:
        """Close the current connection, so that `run` makes a new one."""
        if self._connection is not None:
            await self._connection.close()

    async def _listen(self, url: str) -> None:
        now = asyncio.get_running_loop().time
        async with self._pool.wire.websocket(url) as connection:
            self._connection = connection
            session = SolanaSession(connection)
            opened = now()
            await session.account_subscribe(self._address, Confirmed, "base64")
            async with asyncio.timeout(OPEN_SECONDS):
                while not session.subscriptions:
                    await session.recv()
            self._subscribed()
            pace = TokenBucket(now, MOST_PER_SECOND, MOST_AT_ONCE)
            while True:
                messages = await session.recv()
                if not pace.try_take():
                    raise BadReply(
                        f"the websocket sends more than {MOST_PER_SECOND} messages a second"
                    )
                if len(session.subscriptions) > 1:
                    raise BadReply("the websocket confirmed a subscription that was not requested")
                if now() - opened > BACKOFF_MAX:  # a websocket that fails sooner keeps its back-off
                    self._failures = 0
                for message in messages:
                    if (
                        isinstance(message, AccountNotification)
                        and message.subscription in session.subscriptions
                    ):
                        self.bytes_max = max(self.bytes_max, session.size)
                        self._on_push(
                            AccountData.at(message.result.context.slot, message.result.value)
                        )

    def _subscribed(self) -> None:
        if self._outages.ends():
            log.warning("the websocket is back: the node pushes changes of the run again")
        self.ready.set()
        self._on_subscribed()


class _Message(msgspec.Struct):
    error: Any = None


class SolanaSession(SolanaWsClientProtocol):
    """solana-py's requests and its reading of messages, over a connection that is open already."""

    def __init__(self, connection: Connection) -> None:
        # Without SolanaWsClientProtocol.__init__, which sets up a connection of its own.
        self.subscriptions = {}
        self.sent_subscriptions = {}
        self.failed_subscriptions = {}
        self.request_counter = itertools.count()
        self.size = 0
        """Bytes of the newest message."""
        self._over = connection

    async def send_data(self, message: Any) -> None:
        """Send a subscription request."""
        self.sent_subscriptions[message.id] = message
        await self._over.send(message.to_json())

    async def recv(self) -> list[Notification | SubscriptionResult]:  # type: ignore[override]
        """Return what the next message holds. Raises BadReply for a refusal, and whatever the
        connection raises.
        """
        message = await self._over.recv()
        # solders panics on some messages, and a panic would end the member.
        return await understood(self._read(message))

    async def _read(self, message: str | bytes) -> list[Notification | SubscriptionResult]:
        self.size = len(message.encode() if isinstance(message, str) else message)
        text = message if isinstance(message, str) else message.decode()
        checked: _Message = json_as(text, _Message)
        if checked.error is not None:  # read here, because solders panics on some errors
            raise BadReply(f"the websocket refused the subscription: {str(checked.error)[:200]}")
        if (
            "+zstd" in text
        ):  # we never request compressed accounts, and solders would unpack gigabytes
            raise BadReply("the websocket sent a compressed account")
        return self._process_rpc_response(text)
